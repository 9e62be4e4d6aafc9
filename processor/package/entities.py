"""Entities: features by key that are part of a version, one record a key (processor.package.entity_records).

An entity (an item) fills inputs that a request leaves out. Its records are rows of an ordinary table of type RECORD, so
index, deltas, undo, snapshots, mirrors and signatures treat them as rows of embeddings. Records may hold further
columns, which no feature reads and no request sends: those of filters (extensions.top_items), and the texts of keys
that are strings, by which replies name items.

Invariant: every input that an entity fills is filled in whole: a transform reads inputs of one entity or none of them,
and a request sends all of a transform's inputs or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from freshet_serving.processor.package.manifest_entries import Input

PREFIX = "entities."
MAX_ENTITIES = 64
NOT_GIVEN, MAX_TEXT_NBYTES = -1, 4 * 4096
DEFAULT, DROP, MARK = "default", "drop", "mark"
UNKNOWN = (DEFAULT, DROP, MARK)
"""Policies for a row whose key has no record: missing values; no place in the reply; or missing values and a note."""


@dataclass(frozen=True, slots=True)
class EntityEntry:
    """One entity of a version.

    Attributes:
        name: Its name; its table is named PREFIX + name and has the seed that string keys are hashed with.
        key: The input with its key: int64 or string, one value a row.
        inputs: The inputs that it fills where a request leaves them out.
        capacities: By ragged source, the most values that a record holds.
        unknown: One of UNKNOWN.
        text_nbytes: Most bytes of a record's texts; NOT_GIVEN if records do not hold the columns as they were given.
        filters: Columns that the best items can be filtered on besides the inputs, which then are, too; [] for none at
            all. One of the key's name holds the texts of keys, and one of an input's name is that input.
    """

    name: str
    key: str
    inputs: list[str]
    capacities: dict[str, int] = field(default_factory=dict)
    unknown: str = DEFAULT
    text_nbytes: int = NOT_GIVEN
    filters: list[Input] = field(default_factory=list)

    @property
    def table(self) -> str:
        return PREFIX + self.name

    @property
    def further(self) -> list[Input]:
        """The columns of its records that are no inputs."""
        return [spec for spec in self.filters if spec.name not in self.inputs]
