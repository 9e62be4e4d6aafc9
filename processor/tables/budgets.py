"""Parse memory budgets: how many bytes a table's rows may take; colder rows stay on disk (processor.tables.tier)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import NAME

SIZE = re.compile(r"([0-9]{1,15})([kMGT]?)B?")
UNITS = {"": 1, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MIN_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Budgets:
    """Memory budgets of tables.

    Attributes:
        nbytes: Bytes by "model/table", or by "model/*" for each table of a model that is not named itself.
        scratch: Folder for the log of changed rows; its files have no name and disappear with the process.
    """

    nbytes: Mapping[str, int]
    scratch: Path

    @classmethod
    def parse(cls, texts: Iterable[str], scratch: str | Path) -> Self:
        """Parse budgets such as "ctr/user=512M" or "ctr/*=64M"; raise BadInput, also if there is no scratch folder."""
        budgets: dict[str, int] = {}
        for text in texts:
            name, _, size = text.partition("=")
            model, _, table = name.strip().partition("/")
            match = SIZE.fullmatch(size.strip())
            if not NAME.fullmatch(model) or not (table == "*" or NAME.fullmatch(table)) or match is None:
                raise BadInput(f"table_memory: expected model/table=SIZE such as ctr/user=512M, got {text[:64]!r}")
            nbytes = int(match[1]) * UNITS[match[2]]
            if nbytes < MIN_NBYTES:
                raise BadInput(f"table_memory: {name[:64]}: expected at least 1M, got {size.strip()[:20]}")
            budgets[f"{model}/{table}"] = nbytes
        if budgets and not Path(scratch).is_dir():
            raise BadInput(f"scratch: folder does not exist: {str(scratch)[:64]!r}")
        return cls(budgets, Path(scratch))

    def of(self, model: str, table: str) -> int:
        """Return the budget of one table in bytes; 0 for no limit."""
        return self.nbytes.get(f"{model}/{table}", self.nbytes.get(f"{model}/*", 0))
