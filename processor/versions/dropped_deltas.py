"""Delta files that somebody dropped into a version's folder: which are worth a try, and why others wait.

Used under the model's lock. A file that was refused for good is not read again until it changes; one that continues
nothing yet, not until there are other records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from freshet_serving.processor.package import SUFFIX
from freshet_serving.processor.repository import DeltaFolderScanner, Identity, UnrecordedDelta, identity_of

FOR_GOOD = -1
"""A number of records that there never is."""


class DroppedDeltas:
    """The dropped files of one version. Its length is the number of those that wait."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        """Look at nothing yet.

        Args:
            folder: The version's folder.
            now_s: Returns monotonic seconds.
        """
        self._scanner = DeltaFolderScanner(folder, now_s)
        # Path -> identity of the file, and the number of records (or FOR_GOOD) at which it was refused.
        self._refused: dict[Path, tuple[Identity, int]] = {}
        self._waiting: dict[Path, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, top: int) -> Iterable[UnrecordedDelta]:
        """Return the file that comes next after a step, if there is one."""
        return self._scanner.next(top)

    def others(self, top: int) -> Iterable[UnrecordedDelta]:
        """Return the other files after a step."""
        return self._scanner.others(top)

    def again(self) -> None:
        """List the folder again, even if it does not change."""
        self._scanner.again()

    def prune(self, top: int) -> None:
        """Forget files that are gone, or whose step has been used; `top` is the newest one."""
        self._waiting = {path: why for path, why in self._waiting.items() if _step(path) > top and path.exists()}

    def worth_a_try(self, bare: UnrecordedDelta, number: int) -> Identity | None:
        """Return the identity of a file that is to be tried now; None if it is gone, or was refused as it is.

        Args:
            bare: The file.
            number: Number of records.
        """
        seen, refused = identity_of(bare.path), self._refused.get(bare.path)
        if seen is None or refused in ((seen, number), (seen, FOR_GOOD)):
            return None
        self._waiting.pop(bare.path, None)
        return seen

    def refuse(self, bare: UnrecordedDelta, seen: Identity, number: int, why: str) -> str:
        """Note why a file is not served; return the reason as a line.

        Args:
            bare: The file.
            seen: Its identity when it was tried.
            number: Number of records until which it is not tried again; FOR_GOOD until it changes.
            why: The reason.
        """
        self._refused[bare.path] = seen, number
        self._waiting[bare.path] = line = f"delta {bare.step} {why}"
        return line

    def first(self, top: int) -> tuple[str, bool]:
        """Return why the first file waits, and True if that is refused and blocks the others; one must wait.

        Args:
            top: The newest step that is used.
        """
        step, path = min((_step(path), path) for path in self._waiting)
        return self._waiting[path], step == top + 1 and self._refused.get(path, ((), 0))[1] == FOR_GOOD


def _step(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))
