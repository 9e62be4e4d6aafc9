"""Which features are the user's: those that a request sends once, for all of its candidates.

A feature counts as the user's where its side is "user" and so is that of every feature that reads the same input: an
input that holds columns of both sides has a row for each candidate anyway.

The user-once split of a dense graph (compiler.passes.useronce) takes the dense input x [rows, width] apart by this
rule: the user's columns in their order, then the others in theirs. What the user's graph computes, u [requests,
user_width], is lent to the candidates' graph in a lane of further columns behind theirs: number i of u is at row
i // lane, column i % lane of it. So one matrix is all that an executable reads, and nothing is repeated for every
candidate. The smallest bucket of the candidates' executables has rows enough for all of u.
"""

from __future__ import annotations

from collections.abc import Sequence

from processor.package.manifest import Feature

WHOLE, USER, CANDIDATE = ROLES = ("whole", "user", "candidate")


def user_features(features: Sequence[Feature]) -> list[Feature]:
    """Those of them that are the user's, in the order of their columns."""
    mixed = {f.input for f in features if f.side != "user"}
    return sorted((f for f in features if f.input not in mixed), key=lambda f: f.offset)


def other_features(features: Sequence[Feature]) -> list[Feature]:
    """Those of them that are not, in the order of their columns."""
    mixed = {f.input for f in features if f.side != "user"}
    return sorted((f for f in features if f.input in mixed), key=lambda f: f.offset)


def columns(features: Sequence[Feature]) -> list[int]:
    """Their columns of the dense input, in order."""
    return [column for f in features for column in range(f.offset, f.offset + f.width)]


def lane_width(user_width: int, rows: int) -> int:
    """Columns of the lane for `user_width` numbers in so many rows."""
    return -(-user_width // rows)
