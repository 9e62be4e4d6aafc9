"""Sources in a repository: when they are imported, what is said of them, and that none is tried twice for nothing."""

import json
import os
import time

import pytest

from freshet_serving.processor.versions.policy import VersionPolicy
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.serving.extensions.auto_import.auto_import import (
    LEFT,
    LOOK_EVERY_S,
    REST_S,
    SETTLED_S,
    AutoImporter,
)
from freshet_serving.serving.extensions.auto_import.import_process import UNKNOWN, ImportLimits
from tests.support.packages import write_package

LIMITS = ImportLimits(600.0, 60, 1 << 30)


class FakeProcess:
    def __init__(self, arguments, said):
        self.arguments, self.said, self.code, self.ended = list(arguments), said, None, False

    def poll(self):
        return self.code

    def kill(self):
        self.ended = True

    def wait(self, timeout):
        return 0

    def end(self, code, said=""):
        self.said.write(said.encode())
        self.code = code


class Bench:
    """An importer with a clock of its own and processes that end when told."""

    def __init__(self, root, models=(), versions="latest:1"):
        self.policy = VersionPolicy.parse(versions, "versions")
        self.now_s, self.processes, self.told = 100.0, [], []
        self.importer = AutoImporter(str(root), models, self, LIMITS, self.start, lambda: self.now_s)

    def start(self, arguments, said, folder, limits):
        assert limits is LIMITS
        self.processes.append(FakeProcess(arguments, said))
        return self.processes[-1]

    def chosen(self, model, known):
        return self.policy.choose(known)

    def tell(self, model, status):
        self.told.append((model, status))

    def look(self, after_s=LOOK_EVERY_S):
        self.now_s += after_s
        return self.importer.poll()

    def settle(self):
        """Look twice, so that sources that stood still are imported; return what the second look says."""
        self.look()
        return self.look(SETTLED_S)


@pytest.fixture
def root(tmp_path):
    return tmp_path


@pytest.fixture
def start(root):
    """Importers of the repository, closed at the end."""
    benches = []

    def make(**options):
        benches.append(Bench(root, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.importer.close()


@pytest.fixture
def settled(start):
    """Makes an importer that has begun with the sources that lie there."""

    def make(**options):
        bench = start(**options)
        bench.settle()
        return bench

    return make


def put(root, model="ctr", version=1, text="graph"):
    folder = root / model / str(version)
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_text(text)
    return folder


def test_stable_savedmodel_is_imported_and_its_state_reported(root, start):
    folder = put(root)
    bench = start()

    assert bench.look() == []
    assert bench.look(SETTLED_S) == ["importing ctr version 1"]
    arguments = bench.processes[0].arguments
    assert arguments == ["import", str(folder), "--repository", str(root), "--name", "ctr", "--version", "1"]
    assert bench.told == [("ctr", VersionStatus(1, "LOADING"))]
    bench.processes[0].end(0)
    (folder / "model.json").write_text("{}")
    assert bench.look() == ["ctr version 1 imported"]
    assert bench.look(SETTLED_S) == []
    assert len(bench.processes) == 1


def test_notes_that_an_import_leaves_are_logged(root, settled):
    folder = put(root)
    bench = settled()
    left_out, other = "signature 'classify' is left out: it reads other inputs", "another note"
    notes = {"import": {"notes": [left_out, other]}, "gate": {"unjudged": ["not judged: no held-out rows"]}}
    (folder / "model.json").write_text(json.dumps({"notes": notes}))
    bench.processes[0].end(0)
    assert bench.look() == [
        "ctr version 1 imported", f"ctr version 1: {left_out}", "ctr version 1: gate: not judged: no held-out rows"
    ]  # fmt: skip


def test_source_still_being_copied_is_left_alone(root, start):
    folder = put(root)
    bench = start()
    for i in range(4):
        bench.look(SETTLED_S)
        (folder / "variables" / f"part{i}").write_text("more")
    assert bench.processes == []
    bench.settle()
    assert len(bench.processes) == 1


def test_import_failure_is_reported_once_until_the_source_changes(root, settled):
    put(root)
    bench = settled()
    bench.processes[0].end(2, "noise\nfreshet: source: variables are missing\n")
    assert bench.look() == ["ctr version 1 refused: source: variables are missing"]
    assert bench.told[-1] == ("ctr", VersionStatus(1, "END", "source: variables are missing"))
    for _ in range(5):
        assert bench.look(SETTLED_S) == []
    put(root, text="another graph")
    bench.look(SETTLED_S)
    assert bench.look(SETTLED_S) == ["importing ctr version 1"]


def test_import_crash_is_reported_without_its_output(root, settled, caplog):
    put(root)
    bench = settled()
    bench.processes[0].end(-11, "Traceback: /somewhere/secret\n")
    bench.look()
    assert bench.told[-1] == ("ctr", VersionStatus(1, "END", UNKNOWN))
    assert "secret" in caplog.text


def test_stalled_import_is_killed_and_does_not_block_others(root, settled):
    for model in ("a-stuck", "other", "third"):
        put(root, model=model)
    put(root, model="a-stuck", version=2)
    bench = settled()
    assert [p.arguments[-3::2] for p in bench.processes] == [["a-stuck", "2"], ["other", "1"]]
    stuck, other = bench.processes
    other.end(0)
    assert bench.look() == ["other version 1 imported", "importing third version 1"]
    bench.processes[2].end(0)
    bench.look()
    bench.look(LIMITS.wall_s)
    assert stuck.ended
    stuck.end(-9)
    why = "the import took more than 600 s and was stopped; raise --import-timeout-s"
    assert bench.look() == [f"a-stuck version 2 refused: {why}"]
    assert bench.look(SETTLED_S) == ["importing a-stuck version 1"]


def test_only_the_newest_version_above_the_packages_is_imported(root, settled):
    put(root, version=1)
    put(root, version=3)
    (root / "ctr" / "2").mkdir()
    (root / "ctr" / "2" / "model.json").write_text("{}")
    put(root, model="old", version=1)
    (root / "old" / "5").mkdir()
    (root / "old" / "5" / "model.json").write_text("{}")
    (root / "keras" / "7").mkdir(parents=True)
    (root / "keras" / "7" / "model.keras").write_text("zip")
    bench = settled()
    bench.look(SETTLED_S)
    wanted = [str(root / "ctr" / "3"), str(root / "keras" / "7" / "model.keras")]
    assert [p.arguments[1] for p in bench.processes] == wanted
    bench.processes[0].end(2)
    bench.look()
    assert [p.arguments[1] for p in bench.processes] == wanted


def test_onnx_file_with_weights_still_being_copied_is_left_alone(root, start):
    folder = root / "torch" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_text("graph")
    (folder / "model.onnx.data").write_text("half")
    bench = start()
    bench.look()
    (folder / "model.onnx.data").write_text("half and half")
    bench.look(SETTLED_S)
    assert bench.processes == []
    (folder / ".model.json.tmp").write_text("{")
    bench.look(SETTLED_S)
    assert [p.arguments[1] for p in bench.processes] == [str(folder / "model.onnx")]


def test_source_added_to_an_old_folder_is_found(root, start):
    folder = root / "torch" / "1"
    folder.mkdir(parents=True)
    long_ago = time.time() - 100
    for path in (folder, root / "torch", root):
        os.utime(path, (long_ago, long_ago))
    bench = start()
    for _ in range(3):
        bench.look(SETTLED_S)
    (folder / "model.onnx").write_text("graph")
    for path in (root / "torch", root):
        os.utime(path, (long_ago, long_ago))
    bench.look(SETTLED_S)
    bench.look(SETTLED_S)
    assert [p.arguments[1] for p in bench.processes] == [str(folder / "model.onnx")]


def test_only_configured_models_and_finished_folders_are_imported(root, settled):
    put(root, model="other")
    os.rename(put(root, version=2), root / "ctr" / ".2.tmp")
    bench = settled(models=["ctr"])
    assert bench.processes == []


def test_closing_ends_a_running_import(root, settled):
    put(root)
    bench = settled()
    bench.importer.close()
    assert bench.processes[0].ended


def test_older_source_is_imported_when_the_newest_fails(root, settled):
    put(root, version=1)
    put(root, version=2)
    bench = settled()
    assert bench.processes[0].arguments[1] == str(root / "ctr" / "2")
    bench.look(SETTLED_S)
    assert len(bench.processes) == 1
    bench.processes[0].end(2, "freshet: source: variables are missing\n")
    bench.settle()
    assert [p.arguments[1] for p in bench.processes[1:]] == [str(root / "ctr" / "1")]


def imported(bench, root, model="ctr", looks=8):
    """The versions that were imported, each successfully, in order."""
    for _ in range(looks):
        bench.look(SETTLED_S)
        for process in bench.processes:
            if process.code is None:
                (root / model / process.arguments[-1] / "model.json").write_text("{}")
                process.end(0)
    return [int(process.arguments[-1]) for process in bench.processes]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [("all", [3, 2, 1]), ("latest:2", [3, 2]), ([1, 3], [3, 1]), ([2], [2]), ("latest:1", [3])],
)
def test_versions_that_the_policy_names_are_imported(root, start, versions, expected):
    for version in (1, 2, 3):
        put(root, version=version)
    bench = start(versions=versions)
    assert imported(bench, root) == expected
    left = {status.version for _, status in bench.told if status.error == LEFT}
    assert left == {1, 2, 3} - set(expected)
    assert len([1 for _, status in bench.told if status.error == LEFT]) == len(left)


def test_failed_version_makes_room_for_the_next_one(root, settled):
    for version in (1, 2, 3):
        put(root, version=version)
    bench = settled(versions="latest:2")
    bench.processes[0].end(2, "freshet: source: variables are missing\n")
    assert imported(bench, root) == [3, 2, 1]


def test_version_that_the_policy_names_later_is_imported(root, start):
    put(root, version=1)
    put(root, version=2)
    bench = start()
    assert imported(bench, root) == [2]
    assert bench.told[-1] == ("ctr", VersionStatus(1, "END", LEFT))
    bench.policy = VersionPolicy.parse("all", "versions")
    assert imported(bench, root) == [2, 1]


def test_folder_without_a_model_is_refused_with_the_expected_files(root, start):
    (root / "ctr" / "4").mkdir(parents=True)
    bench = start()
    assert bench.importer.announce() == []
    (root / "ctr" / "4" / "readme.txt").write_text("soon")
    assert bench.importer.announce() == ["ctr"]
    assert bench.told.pop() == ("ctr", VersionStatus(4, "LOADING"))
    bench.look()
    wanted = "expected model.json, saved_model.pb, or one .keras or .onnx file, got readme.txt"
    assert bench.look(SETTLED_S) == [f"ctr version 4 refused: no model found: {wanted}"]
    assert bench.told == [("ctr", VersionStatus(4, "END", f"no model found: {wanted}"))]
    assert bench.look(SETTLED_S) == []
    put(root, version=4)
    assert bench.settle() == ["importing ctr version 4"]


def test_folder_that_cannot_be_read_is_refused(root, start, monkeypatch):
    folder, listdir = put(root).parent / "7", os.listdir
    folder.mkdir()

    def unreadable(path):
        if os.fspath(path) == os.fspath(folder):
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", unreadable)
    bench = start()
    bench.look()
    told = bench.look(SETTLED_S)
    assert told[0] == "ctr version 7 refused: cannot read its folder: Permission denied"


def test_system_error_is_reported_and_the_import_retried(root, start):
    put(root)
    bench = start()
    bench.look()

    def fail(arguments, said, folder, limits):
        raise OSError(11, "Resource temporarily unavailable")

    bench.importer._start, starts = fail, bench.importer._start
    assert bench.look(SETTLED_S) == ["imports: Resource temporarily unavailable; next attempt in 5 s"]
    assert bench.look() == []
    bench.importer._start = starts
    assert bench.look(REST_S) == ["importing ctr version 1"]


@pytest.mark.parametrize("announced", [False, True])
def test_model_outside_a_version_folder_is_reported_once(root, start, caplog, announced):
    (root / "ctr").mkdir()
    (root / "ctr" / "saved_model.pb").write_text("graph")
    (root / "notes").mkdir()
    (root / "notes" / "readme.txt").write_text("text")
    bench = start()
    told = "ctr refused: saved_model.pb belongs in a version folder, ctr/1"
    if announced:
        assert bench.importer.announce() == []
        assert [r.getMessage() for r in caplog.records] == [told]
    else:
        assert bench.look() == [told]
    assert bench.look() == []


def test_package_still_being_copied_is_not_reported_as_foreign(root, start):
    tables = root / "ctr" / "1" / "tables"
    tables.mkdir(parents=True)
    bench = start()
    for size in range(1, 4):
        (tables / ".user.safetensors.x1y2").write_text("x" * size)
        assert bench.look(SETTLED_S) == []


def test_pipe_in_place_of_a_manifest_is_reported_as_such(root, start):
    (root / "ctr" / "1").mkdir(parents=True)
    os.mkfifo(root / "ctr" / "1" / "model.json")
    bench = start()
    bench.look()
    (line,) = bench.look(SETTLED_S)
    assert line.endswith("file, got model.json (not a regular file)")


def test_ignored_config_pbtxt_fields_are_reported_once_per_version(root, start):
    write_package(root)
    (root / "small" / "config.pbtxt").write_text('max_batch_size: 8\noutput { name: "OUTPUT0" }\n')
    bench = start()
    said = [line for _ in range(3) for line in bench.look()]
    assert said == [
        "small: config.pbtxt: expected outputs of the model, score, got 'OUTPUT0'",
        "small: config.pbtxt is only checked for names; ignored: "
        "max_batch_size (batch sizes follow from measured costs)",
    ]
