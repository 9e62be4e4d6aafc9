"""Roles of executables: divide the dense graph into a user part and a candidate part (user/candidate split).

The user's features are those that a request sends once, for all of its candidates. A feature counts as the user's if
its side is "user" and so is that of every feature that reads the same input: an input that holds columns of both sides
has a row for each candidate anyway.

The user/candidate split of a dense graph (compiler.passes.user_candidate_split) divides the dense input x [rows, width]
by this rule: the user's columns in their order, then the others in theirs. The user vector, u [requests, user_width],
is the output of the user's graph. The candidates' graph receives it in further columns after its own, the user columns:
number i of u is at row i // user_columns, column i % user_columns of them. So an executable reads a single matrix, and
nothing is repeated for every candidate. The smallest bucket of the candidates' executables has rows enough for all of
u.
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
    """The part of one role: what its executables read and write.

    Attributes:
        features: Its features, in the order of their columns.
        width: Columns of its input, including the user columns.
        outputs: Columns by name.
    """

    features: list[Feature]
    width: int
    outputs: dict[str, int]


@dataclass(frozen=True, slots=True)
class UserSplitSpec:
    """The user/candidate split of a version's dense graph.

    Attributes:
        user: The user's part.
        candidate: The candidates' part.
        user_width: Length of the user vector.
        rows: Rows of the smallest bucket of candidates.
        user_columns: Number of user columns.
    """

    user: RolePart
    candidate: RolePart
    user_width: int
    rows: int
    user_columns: int


def user_features(features: Sequence[Feature]) -> list[Feature]:
    """Return the user's features among these, in the order of their columns."""
    mixed = {f.input for f in features if f.side != "user"}
    return sorted((f for f in features if f.input not in mixed), key=lambda f: f.offset)


def columns(features: Sequence[Feature]) -> list[int]:
    """Return the columns of the dense input that these features have, in order."""
    return [column for f in features for column in range(f.offset, f.offset + f.width)]


def user_column_count(user_width: int, rows: int) -> int:
    """Return the number of user columns for a user vector.

    Args:
        user_width: Length of the user vector.
        rows: Rows of the smallest bucket of candidates.
    """
    return -(-user_width // rows)


def division(manifest: Manifest) -> UserSplitSpec | None:
    """Return the split of a manifest's dense graph, None if it is not divided."""
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
    """Write a user vector into the user columns of a candidates' input.

    Args:
        part: The split.
        u: float32 [user_width], the user vector.
        x: float32 [bucket, width], the candidates' input; written.
    """
    whole = part.user_width // part.user_columns
    own = x.shape[1] - part.user_columns
    x[:whole, own:] = u[: whole * part.user_columns].reshape(whole, part.user_columns)
    left = u[whole * part.user_columns :]
    x[whole : whole + 1, own : own + len(left)] = left
