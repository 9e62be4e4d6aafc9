"""Transforms: columns that the sparse graph computes from a request's inputs before lookups, such as hash buckets.

Transform says what each operation does; transform_rules bounds its inputs and numbers, processor.features.evaluation
computes it. A transform works on each value of a column (or of ragged rows) by itself, or row by row on several
columns; a column of one row is broadcast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_TRANSFORMS = 4096
MAX_CROSSED = 1 << 16
"""Largest number of values that a cross may make of one row."""
FORMAT = re.compile(r"%[ 0+-]?[0-9]{0,3}(\.[0-9]{1,3})?[dfeg]")
HASHES = ("quotient_remainder", "k_way", "binary_code")
MAX_CODES, MAX_HASHED_ROWS = 64, 2**31 - 1


class ColumnShape(NamedTuple):
    """Type and shape of a column, as in processor.package.manifest.Input."""

    dtype: str
    columns: int = 0
    ragged: bool = False

    @property
    def width(self) -> int:
        return self.columns or 1

    def of(self, dtype: str) -> ColumnShape:
        return ColumnShape(dtype, self.columns, self.ragged)


@dataclass(frozen=True, slots=True)
class Transform:
    """A computed column.

    farm, murmur   strings -> FarmHash's Fingerprint64, or MurmurHash64A, modulo integers [buckets]
    sip            strings -> SipHash-2-4, integers [buckets, two halves of the key]
    text           numbers -> strings, texts [a printf format]
    join           columns -> texts[0] + first + texts[1] + second + ... + texts[-1]
    lower, upper, strip   strings -> strings: ASCII letters, white space at both ends
    bucketize      float32 -> the number of the ascending `floats` that a number is not below
    add, multiply, floor_divide, floor_modulo   two columns, or one and integers [c] or one of each column
    int32          whole numbers -> truncated to 32 bits
    pick           a matrix -> its columns `integers`, [n] for one of them
    side_by_side   columns -> one matrix
    drop           a column or rows -> ragged rows without the values that equal integers [c] or texts [c]
    rows           a column or matrix -> ragged rows of the same values
    within         whole numbers -> those below integers[0], or not below integers[1], replaced by integers[2]
    drop_below     ragged rows of whole numbers -> without those below integers [c]
    fill           ragged rows of whole numbers -> with one value integers [c] in each empty row
    newest         ragged rows -> integers [skip, most]: without the last `skip` of a row, the last `most` of the others
    aged           two lists of an event's values, the second its times -> integers [youngest, oldest]: those of the
                   first that are at least `youngest` older than a row's newest event, and less than `oldest`
    where          lists of an event's values -> those of the first where each of the others equals the next of integers
                   (a list of whole numbers) or of texts (a list of strings)
    empty          ragged rows -> float32 [n], 1.0 for an empty row
    float32        whole numbers -> floats
    whole          floats -> int64, truncated toward 0 and to integers [32 or 64] bits
    one_hot        whole numbers -> for each, float32 of integers [size]: 1.0 at its place
    tally          whole numbers -> float32 [n, integers[0]]: how often a row has each number below it; with integers[1]
                   1: 1.0 if it has it
    mask           two columns -> the second; the last of the integers where the first is integers[0] or texts[0]
    quotient_remainder, k_way, binary_code   ids or strings -> ragged rows of a hashed table's keys, several for each
                   value (codes_a_value): integers [seed of xxh3_64, remainders, quotients], [seed, rows of each, keys],
                   [seed, bits of each, keys] (processor.features.key_codes)
    cross          columns or ragged rows -> for every combination of a row's values, a hash as of TensorFlow's
                   SparseCross: integers [buckets, key]; ragged where one of them is, else [n, combinations]
    equal          ragged rows and a column of their type -> how many values of a row are the column's, in bits: 0, 1, 2
                   for 2 or 3, 3 for 4 to 7, ...

    Attributes:
        name: Its name, like an input's.
        op: One of transform_rules.OPS, listed above.
        inputs: Names of inputs of the request and of earlier transforms.
    """

    name: str
    op: str
    inputs: list[str]
    integers: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def codes_a_value(transform: Transform) -> int:
    """Return how many keys a transform of a hashed table makes of each value; 1 for other transforms."""
    return {"quotient_remainder": 2}.get(transform.op) or (transform.integers[2] if transform.op in HASHES else 1)
