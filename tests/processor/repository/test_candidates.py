"""Candidates are no versions until they are released, whole, under their own number."""

import itertools

import pytest

from freshet_serving.processor.errors import Conflict, Corrupt, NotFound
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.repository import CANDIDATES, MANIFEST, Repository
from tests.processor.extensions.object_stores.bucket import Bucket, Killed
from tests.processor.extensions.object_stores.sides import opened
from tests.support.packages import write_package


def refuse(repository, tmp_path, number=2, seed=0):
    """Writes a version of model `small` and commits it as a candidate, as a gate does that refuses it."""
    folder = write_package(tmp_path / f"made-{number}-{seed}", number, seed=seed)
    source = Repository(folder.parent.parent).version("small")
    commit(repository, source, number)
    return source


def commit(repository, source, number):
    """Copies a version into a repository, as a candidate."""
    with repository.writer("small", number) as writer:
        manifest = copy_files(source, writer)
        preview = writer.preview(manifest)
        preview.verify()
        writer.commit(manifest, repository.candidate_storage("small", number))


def copy_files(source, writer):
    """Copies what a version's manifest names; returns that manifest."""
    for name in source.manifest.files:
        path = writer.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((source.folder / name).read_bytes())
    return Manifest.from_json((source.folder / MANIFEST).read_bytes())


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture(params=["folder", "store"])
def repository(request, tmp_path, bucket):
    if request.param == "store":
        made = opened(bucket, tmp_path / "mirror")
    else:
        write_package(tmp_path / "repository", 1)
        made = Repository(tmp_path / "repository")
    return made


def test_candidate_is_no_version_until_it_is_released(repository, tmp_path):
    before = repository.versions("small")
    refuse(repository, tmp_path)
    assert repository.candidates("small") == [2]
    assert repository.versions("small") == before
    manifest = repository.candidate("small", 2).digest
    repository.release_candidate("small", 2)
    assert repository.candidates("small") == []
    assert repository.versions("small") == [*before, 2]
    released = repository.version("small", 2)
    released.verify()
    assert released.digest == manifest


def test_rejected_candidate_leaves_nothing_behind(repository, tmp_path, bucket):
    refuse(repository, tmp_path)
    repository.reject_candidate("small", 2)
    assert repository.candidates("small") == []
    assert not [key for key in bucket.objects if key.startswith(f"small/{CANDIDATES}")]
    assert not list((repository.root / "small" / CANDIDATES).iterdir())
    with pytest.raises(NotFound, match="has no candidate 2"):
        repository.reject_candidate("small", 2)


def test_candidate_that_is_released_meanwhile_is_not_called_rejected(tmp_path, monkeypatch):
    write_package(tmp_path / "repository", 1)
    repository = Repository(tmp_path / "repository")
    refuse(repository, tmp_path)
    repository.release_candidate("small", 2)
    monkeypatch.setattr(repository, "candidates", lambda model: [2])
    with pytest.raises(Conflict, match="released or rejected at the same time"):
        repository.reject_candidate("small", 2)
    assert repository.versions("small") == [1, 2]


def test_release_never_takes_the_number_of_another_version(repository, tmp_path):
    refuse(repository, tmp_path)
    source = Repository(write_package(tmp_path / "other", 2, seed=5).parent.parent).version("small")
    with repository.writer("small", 2) as writer:
        writer.commit(copy_files(source, writer))
    served = repository.version("small", 2).digest
    with pytest.raises(Conflict, match="version 2 of 'small' exists by now"):
        repository.release_candidate("small", 2)
    assert repository.candidates("small") == [2]
    assert repository.version("small", 2).digest == served


def test_damaged_candidate_is_rejected_and_not_released(tmp_path):
    write_package(tmp_path / "repository", 1)
    repository = Repository(tmp_path / "repository")
    refuse(repository, tmp_path)
    dense = repository.candidate("small", 2).folder / "dense.safetensors"
    dense.write_bytes(bytes(len(dense.read_bytes())))
    with pytest.raises(Corrupt):
        repository.release_candidate("small", 2)
    assert repository.versions("small") == [1]
    repository.reject_candidate("small", 2)
    assert repository.candidates("small") == []


def test_release_is_whole_at_any_kill_and_can_be_repeated(tmp_path):
    whole = Bucket()
    trainer = opened(whole, tmp_path / "trainer")
    refuse(trainer, tmp_path)
    digest = trainer.candidate("small", 2).digest
    for kill_at in itertools.count():
        bucket, calls, ended = Bucket(), itertools.count(), True
        bucket.objects = dict(whole.objects)

        def fault(call, key, calls=calls, at=kill_at):
            if next(calls) == at:
                raise Killed

        bucket.fault = fault
        try:
            opened(bucket, tmp_path / f"killed-{kill_at}").release_candidate("small", 2)
        except Killed:
            ended = False
        bucket.fault = lambda call, key: None
        bucket.objects.pop("small/2/.claim", None)
        other = opened(bucket, tmp_path / f"other-{kill_at}")
        if other.versions("small"):
            version = other.version("small", 2)
            version.verify()
            assert version.digest == digest
        else:
            assert other.candidates("small") == [2]
        if other.candidates("small"):
            other.release_candidate("small", 2)
        assert opened(bucket, tmp_path / f"last-{kill_at}").version("small", 2).digest == digest
        if ended:
            break
    assert kill_at > 5


def test_repository_of_only_a_candidate_is_not_misplaced(tmp_path):
    (tmp_path / "repository" / "small").mkdir(parents=True)
    repository = Repository(tmp_path / "repository")
    refuse(repository, tmp_path, 1)
    assert repository.candidates("small") == [1]
    assert repository.misplaced() == ""
