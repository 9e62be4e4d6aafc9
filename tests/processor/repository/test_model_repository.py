"""The repository: what it sees, what it refuses to see, and that nothing committed is ever lost."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, FreshetError, NotFound, NotReady
from freshet_serving.processor.package import whole_files
from freshet_serving.processor.repository.model_repository import Repository, check_name
from tests.support.descriptors import few_descriptors
from tests.support.packages import write_package


@pytest.fixture
def root(tmp_path):
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def make_version(root, model="small", version=1):
    folder = root / model / str(version)
    (folder / "deltas").mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    return folder


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


# Models, versions, deltas


def test_repository_that_is_not_a_folder_is_refused(root):
    for path in (root / "nowhere", touch(root / "file")):
        with pytest.raises(NotFound, match="is not a folder"):
            Repository(path)


def test_models_are_folders_with_plain_names(root):
    make_version(root, "small")
    make_version(root, "a.b-c_1")
    for name in (".hidden", ".small.tmp", "with space", "-dash"):
        (root / name).mkdir()
    touch(root / "file")
    assert Repository(root).models() == ["a.b-c_1", "small"]


def test_versions_are_numbered_folders_with_a_manifest_inside(root):
    for version in (10, 9, 1):
        make_version(root, version=version)
    for name in ("2", ".3.a1b2.tmp", "0", "-5", "1e3", "v6", "٧", "1" * 19):
        (root / "small" / name).mkdir()
    for name in (".3.a1b2.tmp", "0", "v6", "1" * 19):
        touch(root / "small" / name / "model.json")
    touch(root / "small" / "8")
    assert Repository(root).versions("small") == [1, 9, 10]
    assert Repository(root).versions("nobody") == []


def test_version_is_opened_by_number_or_as_the_newest(tmp_path):
    for version in (2, 10):
        write_package(tmp_path, version, users=range(3))
    repository = Repository(tmp_path)
    assert repository.version("small").manifest.version == 10
    assert repository.version("small", 2).folder == repository.folder("small", 2)
    with pytest.raises(NotFound, match="model 'small' version 3 is not in the repository"):
        repository.version("small", 3)
    with pytest.raises(NotFound, match="model 'nobody' is not in the repository"):
        repository.version("nobody")


# The jail


def test_file_is_found_by_relative_and_absolute_path(root):
    path = touch(make_version(root) / "deltas" / "1.safetensors")
    repository = Repository(root)
    for name in ("small/1/deltas/1.safetensors", str(path), "small/../small/1/./deltas/1.safetensors"):
        assert repository.resolve(name) == path.resolve()


def test_symbolic_link_that_stays_inside_is_followed(root):
    path = touch(root / "uploads" / "1")
    (root / "link").symlink_to("uploads/1")
    assert Repository(root).resolve("link") == path.resolve()


@pytest.mark.parametrize(
    ("which", "target"),
    [("small/1", ".store/build-7"), ("small/1", "releases/1"), ("small/1", "other/7"), ("small", "small-2026-11")],
)
def test_folder_that_is_a_link_inside_the_repository_is_opened(root, which, target):
    write_package(root)
    (root / target).parent.mkdir(exist_ok=True)
    (root / which).rename(root / target)
    (root / which).symlink_to(os.path.relpath(root / target, (root / which).parent))
    repository = Repository(root)
    assert repository.versions("small") == [1]
    repository.version("small").verify()


@pytest.mark.parametrize("which", ["small/1", "small"])
def test_link_out_of_the_repository_is_refused_as_a_link(root, tmp_path, which):
    write_package(root)
    (root / which).rename(tmp_path / "outside")
    (root / which).symlink_to(tmp_path / "outside")
    with pytest.raises(NotFound, match=r"^small/1: is a link, or .* target is outside") as caught:
        Repository(root).version("small", 1)
    assert str(tmp_path) not in str(caught.value)


def test_removing_a_version_leaves_the_target_of_its_link(root):
    written = write_package(root)
    written.rename(root / "kept")
    written.symlink_to("../kept")
    Repository(root).storage("small", 1).end()
    assert (root / "kept" / "model.json").exists()
    assert list((root / "small").iterdir()) == []


def test_repository_behind_a_link_serves_paths_through_the_link(root, tmp_path):
    path = touch(root / "small" / "x")
    (tmp_path / "link").symlink_to(root)
    repository = Repository(tmp_path / "link")
    for name in ("small/x", str(tmp_path / "link" / "small" / "x")):
        assert repository.resolve(name) == path.resolve()


@pytest.fixture
def jail(root, tmp_path):
    touch(tmp_path / "secret")
    touch(tmp_path / "repository-2" / "secret")
    make_version(root)
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to("nowhere")
    return Repository(root)


escapes = [
    *("../secret", "small/../../secret", "/etc/passwd", "out", "up/secret", "up/repository/../secret"),
    *("../repository-2/secret", "loop", "loop/x", "dangling", "nowhere", "", ".", "/", "small", "small/1"),
    *("small/1/model.json/x", "a\0b", "\0", "small/1/model.json\0", "~/secret", "\ud800", "small/\udcff"),
    *("a" * 256, "small/" + "a" * 300, "a" * 5000, "a/" * 2048, "/" + "a/" * 2000, "../" * 1000 + "etc/passwd"),
]


@pytest.mark.parametrize("path", escapes, ids=lambda path: ascii(path[:24]))
def test_path_escaping_the_repository_is_refused_without_details(jail, path):
    for spelled in (path, str(jail.root / path)):
        with pytest.raises(NotFound) as refused:
            jail.resolve(spelled)
        assert str(refused.value) == "path: expected a file inside the repository"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.text(max_size=30)
    | st.lists(
        st.sampled_from(["..", ".", "up", "out", "loop", "small", "1", "secret", "", "a" * 300, "\0", "model.json"]),
        max_size=8,
    ).map("/".join)
)
def test_arbitrary_path_finds_only_files_inside(jail, path):
    try:
        found = jail.resolve(path)
    except FreshetError:
        return
    assert found.is_relative_to(jail.root.resolve())
    assert found.is_file()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".a", "a b", "a\0", "ä", "a" * 129, "a\n"])
def test_invalid_name_is_refused(name):
    with pytest.raises(BadInput, match="label: expected a name of letters, digits"):
        check_name(name, "label")
    assert check_name("canary-1.b_2", "label") == "canary-1.b_2"


# Writing


def files_below(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def no_space(*_):
    raise OSError(30, "Read-only file system: '/secret/place'")


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_unwritable_repository_is_reported_and_stays_unchanged(root, monkeypatch, call):
    version = make_version(root)
    monkeypatch.setattr(whole_files.os, call, no_space)
    with pytest.raises(NotReady, match="the repository cannot be written") as refused:
        Repository(root).keep_labels("small", {"a": 1})
    monkeypatch.undo()
    assert "secret" not in str(refused.value)
    assert [p.name for p in version.parent.iterdir()] == [version.name]


def test_labels_round_trip(root):
    make_version(root)
    assert Repository(root).labels("small") == Repository(root).labels("nobody") == {}
    Repository(root).keep_labels("small", {"stable": 1, "canary": 2})
    assert Repository(root).labels("small") == {"stable": 1, "canary": 2}
    assert Repository(root).keep_labels("small", {"stable": 3, "canary": None, "old": None}) == {"stable": 3}
    assert Repository(root).labels("small") == {"stable": 3}
    assert files_below(root / "small").keys() == {"labels.json", "1/model.json"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": "1"}',
        b'{"a": true}',
        b'{"a": 1.0}',
        b"\xff\xff",
        b"[" * 100_000,
        b'{"a":1' + b"0" * 5000,
    ],
)
def test_malformed_labels_file_means_no_labels(root, content):
    make_version(root)
    (root / "small" / "labels.json").write_bytes(content)
    assert Repository(root).labels("small") == {}


def test_servers_that_change_labels_at_once_lose_none(root):
    make_version(root)
    names = [[f"{server}-{n}" for n in range(20)] for server in range(4)]

    def change(mine):
        repository = Repository(root)
        for name in mine:
            repository.keep_labels("small", {name: 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, names))
    assert Repository(root).labels("small").keys() == set(chain(*names))


def test_labels_change_where_folders_cannot_be_locked(root, monkeypatch):
    make_version(root)
    monkeypatch.setattr(whole_files.fcntl, "flock", no_space)
    assert Repository(root).keep_labels("small", {"a": 1}) == Repository(root).labels("small") == {"a": 1}


def test_temporarily_unreadable_repository_is_not_treated_as_empty(root):
    repository = Repository(root)
    make_version(root)
    repository.keep_labels("small", {"stable": 1})
    reads = [repository.models, lambda: repository.versions("small"), lambda: repository.uncommitted("small")]
    reads += [lambda: repository.labels("small"), lambda: repository.traffic("small")]
    repository.keep_traffic("small", {"split": None})
    for read in reads:
        with few_descriptors(), pytest.raises(NotReady):
            read()
    assert repository.labels("small") == {"stable": 1}
    assert repository.versions("small") == [1]


def test_importable_versions_are_found_by_their_source_files(root):
    make_version(root, version=1)
    (root / "small" / "1" / "saved_model.pb").touch()
    for version in (2, 3, 4, 5, 7, 8):
        (root / "small" / str(version)).mkdir()
    for file in ("2/saved_model.pb", "3/a.keras", "4/a.keras", "4/b.keras", "7/a.onnx", "7/a.onnx.data"):
        (root / "small" / file).touch()
    for file in ("8/a.onnx", "8/a.keras", ".6.tmp/saved_model.pb"):
        touch(root / "small" / file)

    found = {2: root / "small" / "2", 3: root / "small" / "3" / "a.keras", 7: root / "small" / "7" / "a.onnx"}
    assert Repository(root).sources("small") == found
    assert Repository(root).sources("nothing") == {}


def test_unknown_model_names_are_refused_unless_all_are_missing(tmp_path):
    Repository(tmp_path).check_models(["ctr"])
    for name in ("ctr", "ads"):
        (tmp_path / name).mkdir()
    Repository(tmp_path).check_models(["ads", "ctr"])
    with pytest.raises(NotFound, match=r"^model 'nope' is not in the repository, which holds ads, ctr$"):
        Repository(tmp_path).check_models(["ctr", "nope"])


@pytest.mark.parametrize("file", ["model.json", "saved_model.pb", "network.keras", "ranker.onnx"])
def test_folder_of_one_model_is_known_as_such(root, file):
    touch(root / "0012" / file)
    assert "is the folder of one model" in Repository(root).misplaced()


def test_folder_that_holds_a_repository_is_known_as_such(root):
    make_version(root / "models", "ctr", 3)
    assert "a folder in it holds models" in Repository(root).misplaced()


def test_folder_without_versions_is_not_called_misplaced(root):
    touch(root / "ctr" / "notes.txt")
    (root / "7").mkdir()
    touch(root / "2026" / "report.txt")
    assert Repository(root).misplaced() == ""
