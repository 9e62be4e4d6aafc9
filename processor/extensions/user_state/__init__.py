"""User state: what was computed for a user outlives the request, and is used again while it is exact.

user_states     looks and keeps for the runner
state_gate      decides of which users it pays to look for a state
user_reads      what the user's part of a request reads
read_kernels    kernels over these inputs and rows
state_tensors   tensors as words of a state, as float32 or float16
state_names     names of states: keyed hashes
state_erasure   names states by their users, and erases the states of a user
state_store     one process's store
arena_locks     locks of names and segments, which the dead leave free
state_arena     memory that all processes share, and the kernels that read and write it
erase_kernels   kernels that zero states of any process
kept_users      users whose inputs are kept under an id
kept_words      replaces what is kept under a name, by one process at a time
kept_columns    columns of one user as words, and back
event_merging   adds, corrects and takes back events of a sequence
state_counters  counts hits, and misses by cause
user_counters   counts changes of kept users, and users that are gone
state_report    reports on them for the admin API
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension, UserStateStore

__all__: list[str] = []


def _memory(nbytes: int, processes: int) -> Any:
    from freshet_serving.processor.extensions.user_state.user_states import shared_memory

    return shared_memory(nbytes, processes)


def _open(memory: Any, processes: int, process: int, clock: Any) -> Any:
    from freshet_serving.processor.extensions.user_state.user_states import open_states

    return open_states(memory, processes, process, clock)


def _report(host: Any, model: str) -> dict[str, Any]:
    from freshet_serving.processor.extensions.user_state.state_report import user_state_report

    return user_state_report(host, model)


REQUIRES = ()
EXTENSION = Extension(user_states=UserStateStore(_memory, _open), reports={"user_state": _report})
