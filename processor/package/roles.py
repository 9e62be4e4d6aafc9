"""Roles of executables, by which features are the user's: those that a request sends once, for all of its candidates.

A feature counts as the user's where its side is "user" and so is that of every feature that reads the same input: an
input that holds columns of both sides has a row for each candidate anyway.

The user-once division of a dense graph (compiler.passes.user_candidate_split) takes the dense input x [rows, width]
apart by this rule: the user's columns in their order, then the others in theirs. What the user's graph computes, u
[requests, user_width], is lent to the candidates' graph in a lane of further columns behind theirs: number i of u is
at row i // lane, column i % lane of it. So one matrix is all that an executable reads, and nothing is repeated for
every candidate. The smallest bucket of the candidates' executables has rows enough for all of u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package.manifest import CANDIDATE, Feature, Manifest

USER_VECTOR = "u"


@dataclass(frozen=True, slots=True)
class RolePart:
    """The part of one role: what its executables read and write. features: in the order of their columns. width: of x,
    with the lane. outputs: name -> columns."""

    features: list[Feature]
    width: int
    outputs: dict[str, int]


@dataclass(frozen=True, slots=True)
class UserSplitSpec:
    """The division of a version's dense graph. rows: of the smallest bucket of candidates."""

    user: RolePart
    candidate: RolePart
    user_width: int
    rows: int
    user_columns: int


def user_features(features: Sequence[Feature]) -> list[Feature]:
    """The user's features among these, in the order of their columns."""
    mixed = {f.input for f in features if f.side != "user"}
    return sorted((f for f in features if f.input not in mixed), key=lambda f: f.offset)


def columns(features: Sequence[Feature]) -> list[int]:
    """The columns of the dense input that these features have, in order."""
    return [column for f in features for column in range(f.offset, f.offset + f.width)]


def user_column_count(user_width: int, rows: int) -> int:
    """Columns of the lane for `user_width` numbers in so many rows."""
    return -(-user_width // rows)


def division(manifest: Manifest) -> UserSplitSpec | None:
    """The division of a manifest's dense graph, None where it is not divided."""
    if not manifest.user_width:
        return None
    user = user_features(manifest.features)
    mine = {f.name for f in user}
    others = sorted((f for f in manifest.features if f.name not in mine), key=lambda f: f.offset)
    rows = min(e.bucket for e in manifest.executables if e.role == CANDIDATE)
    user_columns = user_column_count(manifest.user_width, rows)
    outputs = {o.name: o.columns for o in manifest.outputs}
    return UserSplitSpec(
        RolePart(user, sum(f.width for f in user), {USER_VECTOR: manifest.user_width}),
        RolePart(others, sum(f.width for f in others) + user_columns, outputs),
        manifest.user_width,
        rows,
        user_columns,
    )


def write_user_vector(part: UserSplitSpec, u: NDArray[np.float32], x: NDArray[np.float32]) -> None:
    """Writes what was computed of a user, float32 [user_width], into the lane of a candidates' input."""
    whole = part.user_width // part.user_columns
    own = x.shape[1] - part.user_columns
    x[:whole, own:] = u[: whole * part.user_columns].reshape(whole, part.user_columns)
    left = u[whole * part.user_columns :]
    x[whole : whole + 1, own : own + len(left)] = left
