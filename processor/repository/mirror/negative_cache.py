"""Names in a store that hold no version: remembered, and asked for again a few at a time."""

from __future__ import annotations

from collections.abc import Iterable

AT_ONCE = 64


class NegativeCache:
    """The empty names of one listing. Anybody who may write makes names, so what they cost does not grow with them."""

    def __init__(self) -> None:
        # In the order in which they were asked for.
        self._asked: dict[str, None] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        """The names of a listing to ask for now: all that are not known to be empty, then AT_ONCE of those that were
        asked for longest ago. Forgets names that are gone."""
        there = dict.fromkeys(names)
        self._asked = {name: None for name in self._asked if name in there}
        return [name for name in there if name not in self._asked] + list(self._asked)[:AT_ONCE]

    def note(self, name: str, empty: bool) -> None:
        """Notes what was found."""
        self._asked.pop(name, None)
        if empty:
            self._asked[name] = None
