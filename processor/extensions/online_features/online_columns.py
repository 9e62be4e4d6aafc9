"""Columns of online features as a read returns them: each value with the outcome of looking it up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.extensions.online_features.value_types import DecodedValue


class Status(IntEnum):
    """Outcome of looking up one value. The first five are Feast's FieldStatus."""

    DAMAGED = 0
    PRESENT = 1
    NULL = 2
    NOT_FOUND = 3
    EXPIRED = 4
    LATE = 5


@dataclass(frozen=True, slots=True, eq=False)
class OnlineColumn:
    """One feature's values: one for each row, the default where the status, uint8 [n], is not PRESENT."""

    values: Column
    status: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class OnlineColumns:
    """Online features of a request, by the name of the input that each fills.

    `defaulted` has inputs with a default in at least one row, and the status of the first such row in lower case;
    `problem` says why values are late.
    """

    columns: dict[str, OnlineColumn]
    defaulted: dict[str, str]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Entity:
    """Decoded features of one key: for each of the lookup its status, its value and when that expires.

    A status is DAMAGED, PRESENT, NULL or NOT_FOUND. All are PRESENT until `whole_until_unix_s`; never, if -inf.
    """

    status: tuple[Status, ...]
    values: tuple[DecodedValue, ...]
    expires_unix_s: tuple[float, ...]
    whole_until_unix_s: float = -math.inf
