"""Processes around one bucket: repositories with a mirror each, and versions that are published into it."""

from pathlib import Path

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.object_stores.mirror import Mirror
from freshet_serving.processor.extensions.object_stores.mirrored_repository import MirroredRepository
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import make_delta, write_package


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


class Server:
    """A repository that is followed without threads: beats, with the listings that are due, are the test's."""

    def __init__(self, bucket, folder, **options):
        self.clock = FakeClock()
        self.repository = opened(bucket, folder, self.clock.now_s, serving=True, **options)
        self.mirror = self.repository.mirror

    def load(self, version=1):
        self.repository.models()
        self.mirror.following = True
        self.mirror.prepare("small", version)
        return ChangeLog.of(self.repository.reader("small", version))

    def beat(self, after_s=0.3):
        self.clock.advance(after_s)
        self.mirror.beat()
        if self.mirror.listing_due():
            self.mirror.list_all()
            self.mirror.beat()


def follows(server, trainer, step):
    """A server goes on with the next delta of model `small`, whatever else there is."""
    change_log = ChangeLog.of(server.repository.reader("small", 1))
    trainer.publish(make_delta(step, [1]))
    server.beat()
    return [record.step for record in change_log.look()] == [step]
