"""Name states by their users, and erase the states of a user from the arena.

A state's subject is the model and the key of its user as requests are bound to it, read from the one input that holds
users' keys (processor.versions.erasure.user_input). Where a version has no such input, or a request leaves it out, the
subject is UNKNOWN, and each erasure takes these states too: they are computed again when they are asked for.

The process that has allocated the arena erases in all of it (state_arena), without a message to those that write it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from ctypes import c_int64
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.user_state.state_names import UNKNOWN, StateNames
from freshet_serving.processor.extensions.user_state.state_store import erase_states, secret_of
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import FILLED_BY, INPUT_FIELDS, SENT, SOURCE, VALUES
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import KEEPERS
from freshet_serving.processor.versions.erasure import ErasedUser, user_input

Int64s = NDArray[np.int64]
_key = Struct("<q").pack


def subject_of(model: str, key: int) -> bytes:
    """Return what a user's states are named by; `key` is the user's as requests are bound to it."""
    return _key(key) + model.encode()


class Subjects:
    def __init__(self, manifest: Manifest, plan: SparsePlan) -> None:
        self._model, name = manifest.model, user_input(manifest)
        # A string is bound once for each table that looks it up; any of its hashes names the user.
        rows = [n for n, feature in enumerate(manifest.features) if feature.input == name and feature.table]
        self._source = int(plan.plan[rows[0], SOURCE]) if rows else -1

    def of(self, bound: BoundRequest) -> bytes:
        """Return the subject of a request whose user inputs have one row; b"" if it does not say whose it is."""
        if self._source < 0:
            return b""
        source = np.frombuffer(bound.words, np.int64).reshape(-1, INPUT_FIELDS)[self._source]
        if source[FILLED_BY] != SENT:
            return b""
        return subject_of(self._model, c_int64.from_address(int(source[VALUES])).value)


class SharedStates:
    """The arena, as its allocator erases from it, for as long as the memory lives."""

    def __init__(self, memory: Int64s, processes: int) -> None:
        self._memory, self._processes = weakref.ref(memory), processes
        # Lives as long as the memory, which does not know it.
        weakref.finalize(memory, KEEPERS.discard, self)
        KEEPERS.add(self)

    def erase_user(self, user: ErasedUser) -> Mapping[str, int]:
        memory = self._memory()
        if memory is None:
            return {}
        names = StateNames(secret_of(memory))
        # Also what is kept under an id of the client's choice, if that is the user's key.
        texts = [user.text, *(subject_of(user.model, key) for key in user.bound)]
        subjects = [UNKNOWN, *map(names.subject, texts)]
        return {"user_states": sum(erase_states(memory, self._processes, subject=subject) for subject in subjects)}
