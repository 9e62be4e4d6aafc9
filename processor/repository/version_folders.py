"""The version folders of one repository's models, by number.

The version numbers of a model are mapped to folders: `3`, or with leading zeros `0003`, as TensorFlow Serving accepts
them. Of two folders for one number neither is used, which is logged once. A version that was seen before the second
folder appeared keeps its own, so that a stray copy takes nothing out of service.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

log = logging.getLogger("freshet.repository")

VERSION = re.compile(r"[1-9][0-9]{0,17}")
PADDED = re.compile(r"0{0,17}[1-9][0-9]{0,17}")


class VersionFolders:
    """The version folders of one repository's models, as they were last listed."""

    # Shared by all repositories of the process: one folder may be opened several times, by the importer with each poll.
    _told: ClassVar[set[tuple[str, ...]]] = set()

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[tuple[str, int], str] = {}

    def of(self, model: str, names: Iterable[str]) -> dict[int, str]:
        """Map version numbers to the folder names of a model; numbers with two folders are left out."""
        spellings: dict[int, list[str]] = {}
        for name in names:
            if PADDED.fullmatch(name):
                spellings.setdefault(int(name), []).append(name)
        chosen = {}
        for number, spelled in spellings.items():
            name = self._names.get((model, number), spelled[0])
            if len(spelled) > 1:
                self._tell(model, number, sorted(spelled))
                if self._names.get((model, number)) not in spelled:
                    continue
            self._names[model, number] = chosen[number] = name if name in spelled else spelled[0]
        return chosen

    def path(self, model: str, number: int) -> Path:
        """Return the folder of a version, or the path for a new one: the number without leading zeros."""
        folder, plain = self._root / model, str(number)
        listed = self._names.get((model, number))
        if listed is not None and (listed == plain or os.path.lexists(folder / listed)):
            return folder / listed
        if not os.path.lexists(folder / plain):
            try:
                return folder / self.of(model, os.listdir(folder)).get(number, plain)
            except OSError:
                pass
        return folder / plain

    def _tell(self, model: str, number: int, spelled: list[str]) -> None:
        key = (str(self._root), model, *spelled)
        if key not in self._told:
            self._told.add(key)
            log.error(
                "%s version %d: expected one folder, got %s: remove all but one", model, number, " and ".join(spelled)
            )
