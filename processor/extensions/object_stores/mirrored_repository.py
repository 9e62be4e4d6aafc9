"""A repository in an object store, as the engine sees it: the folder of its mirror, read like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.object_stores.mirror import Mirror
from freshet_serving.processor.extensions.object_stores.mirrored_storage import MirroredStorage
from freshet_serving.processor.repository import CANDIDATES, TRAINER, Keyring, VersionReader
from freshet_serving.processor.repository.model_repository import LABELS, ONE_MODEL, Repository, check_name
from freshet_serving.processor.repository.version_records import WITHDRAWN, VersionRecords


class MirroredRepository(Repository):
    """A mirrored repository. Reads wait for the store until follow() has started the polling threads."""

    remote = True

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(mirror.root)
        self.mirror = mirror

    def models(self) -> list[str]:
        self._asked(self.mirror.listing.models)
        return super().models()

    def misplaced(self) -> str:
        return ONE_MODEL if self.mirror.listing.of_one_model else ""

    def versions(self, model: str) -> list[int]:
        check_name(model, "model")
        self._asked(lambda: self.mirror.listing.versions(model, strict=True))
        return super().versions(model)

    def candidates(self, model: str) -> list[int]:
        # Asked for by people and trainers, rarely, so the store is listed even while the mirror polls.
        self.mirror.listing.versions(f"{check_name(model, 'model')}/{CANDIDATES}", strict=True)
        return super().candidates(model)

    def reader(self, model: str, number: int) -> VersionReader:
        storage = self.mirror.storage(model, number)
        if not storage.followed:
            storage.catch_up(self.keyring)
        return VersionReader(self.folder(model, number), storage=storage, keyring=self.keyring)

    def storage(self, model: str, number: int) -> MirroredStorage:
        return self.mirror.storage(model, number)

    def with_keys(self, keyring: Keyring) -> Self:
        self.mirror.keyring = keyring
        return super().with_keys(keyring)

    def ready(self, model: str, number: int) -> bool:
        return self.mirror.ready(model, number)

    def prepare(self, model: str, number: int) -> None:
        self.mirror.prepare(model, number)

    def release(self, model: str, number: int) -> None:
        self.mirror.storage(model, number).release()

    def seen_s(self) -> float:
        return self.mirror.seen_s()

    def concern(self) -> str:
        return self.mirror.listing.concern() if self.mirror.following else ""

    def follow(self) -> None:
        self.mirror.follow()

    def close(self) -> None:
        self.mirror.close()

    def version_records(self, model: str) -> VersionRecords:
        records = super().version_records(model)
        self._asked(lambda: self.mirror.listing.records(model))
        return records

    def _kept(self, model: str, name: str) -> dict[str, Any] | None:
        self._asked(lambda: self.mirror.listing.kept(f"{model}/{name}"))
        return super()._kept(model, name)

    def keep_labels(self, model: str, changes: Mapping[str, int | None]) -> dict[str, int]:
        # The mirror may be seconds behind. Two changes within one GET and PUT may still lose one of them: not every
        # store replaces an object on a condition.
        self.mirror.listing.kept(f"{model}/{LABELS}")
        return super().keep_labels(model, changes)

    def _put(self, name: str, data: bytes) -> None:
        self.mirror.store.put(name, data)
        (self.root / name).parent.mkdir(exist_ok=True)
        super()._put(name, data)
        self.mirror.tell()

    def keep_trainer(self, model: str, report: bytes) -> None:
        # Without the hint: mirrors would list the whole store every few seconds for what nobody serves.
        self.mirror.store.put(f"{model}/{TRAINER}", report)

    def _create(self, model: str, name: str, data: bytes) -> bool:
        if not self.mirror.store.create(f"{model}/{WITHDRAWN}/{name}", data):
            # Bring the record that won.
            self.mirror.listing.records(model)
            return False
        super()._create(model, name, data)
        self.mirror.tell()
        return True

    def _asked(self, act: Any) -> None:
        """Query the store, unless the mirror polls in the background.

        While the store is unreachable, a server uses the mirrored files, but takes no empty mirror for a repository.
        """
        try:
            if not self.mirror.following:
                act()
            elif not self.mirror.listing.listed:
                raise NotReady("repository: the object store has not answered yet")
        except NotReady:
            if not self.mirror.serving or not super().models():
                raise
