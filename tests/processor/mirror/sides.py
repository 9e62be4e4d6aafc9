"""Processes around one bucket: repositories with a mirror each, and versions that are published into it."""

from pathlib import Path

from processor.mirror.mirror import Mirror
from processor.mirror.mirrored_repository import MirroredRepository
from processor.package.manifest import Manifest
from processor.package.repository import Repository
from tests.packages import write_package


def opened(bucket, folder, now=lambda: 0.0, **options):
    """A repository as a process opens it."""
    return MirroredRepository(Mirror(bucket, Path(folder), now_s=now, **options))


def publish(repository, tmp_path, version=1, **options):
    """Publishes a version of model `small`."""
    folder = write_package(tmp_path / f"made-{version}-{len(list(tmp_path.iterdir()))}", version, **options)
    made = Repository(folder.parent.parent)
    source = made.version("small", version)
    with repository.writer("small", version) as writer:
        for name in source.manifest.files:
            path = writer.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((source.folder / name).read_bytes())
        writer.commit(Manifest.from_json((source.folder / "model.json").read_bytes()))
    return repository.version("small", version)
