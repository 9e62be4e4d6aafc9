"""The users whose inputs are kept: implements processor.features.user_calls.KeptUsers.

A kept user is (owner, model, sequence id) -> the user's inputs as they were sent, and a version that each change
replaces. They lie beside what was computed of users, under the same budget, time to live and erasures (kept_words).
Kept are the inputs of the user, and others with one row that a prepare sends and that are not the candidates'. They
stand in for what later requests leave out: such a request is answered as one that was sent whole, as what is computed
of a user is found by the inputs alone (user_states).

Invariants
- A change reads, merges and replaces under the user's lock: of two that come at once, in any process, each meets the
  result of the other. One that changes nothing keeps the version; inputs that are no sequence's are replaced.
- Versions of a user ascend, and no two users that were ever kept under one id have the same: they are taken from the
  machine's clock where it is ahead.
- What is kept has one row and the types of the model's inputs. What an older version of the model had otherwise is not
  used.
- The name is a hash of owner and id: another owner finds nothing.
- An erasure of a user reaches what has the user's key among its inputs, under whatever id. Where the model has no input
  with users' keys the id is taken for one; where it has several, each erasure takes the user.
- No message has an id, or a value.

Costs: a look of a few microseconds and a copy of the inputs; a change writes them anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput, Conflict, NotReady, TooLarge, UserGone, first_of
from freshet_serving.processor.extensions.user_state.event_merging import changed, cut
from freshet_serving.processor.extensions.user_state.kept_columns import packed, unpacked, version_of
from freshet_serving.processor.extensions.user_state.kept_words import KeptWords
from freshet_serving.processor.extensions.user_state.state_erasure import subject_of
from freshet_serving.processor.extensions.user_state.state_names import UNKNOWN, StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateName, StateStore
from freshet_serving.processor.extensions.user_state.user_counters import RELEASE, UserCounters
from freshet_serving.processor.features.bound_request import non_finite_input
from freshet_serving.processor.features.input_reader import size_of
from freshet_serving.processor.features.sequences import is_sound, unpack, without_padding
from freshet_serving.processor.features.user_calls import (
    APPEND,
    MAX_ID_NBYTES,
    MAX_VERSION,
    PREPARE,
    REMOVE,
    SCORE,
    CompletedInputs,
    InputRoles,
    UserCall,
    roles_of,
)
from freshet_serving.processor.package import UNREAD, Input, Manifest, SequenceEntry
from freshet_serving.processor.versions.erasure import user_inputs

ATTEMPTS = 3
"""How often a change is made anew because something was erased meanwhile."""
Inputs = Mapping[str, Column]


class ModelUsers:
    def __init__(self, scope: int) -> None:
        self.counters, self.scope = UserCounters(), scope


class KeptUsers:
    def __init__(self, store: StateStore, names: StateNames) -> None:
        self._store, self._names, self._words = store, names, KeptWords(store)
        self._roles: dict[str, tuple[Manifest, InputRoles, tuple[str, ...]]] = {}
        self._models: dict[str, ModelUsers] = {}
        self._adding = threading.Lock()

    def counted(self, model: str) -> Snapshot:
        users = self._of(model)
        return users.counters.snapshot(*self._store.usage(users.scope))

    def complete(self, call: UserCall, manifest: Manifest, inputs: Inputs, ranks: bool) -> CompletedInputs:
        """Make a call's change, and complete a request's inputs (KeptUsers.complete)."""
        counters = self._of(manifest.model).counters
        try:
            return self._completed(call, manifest, inputs, ranks)
        except UserGone:
            counters.gone(self._store.cause(self._name(call, manifest.model)))
            raise
        except Conflict:
            counters.conflicted()
            raise

    def _completed(self, call: UserCall, manifest: Manifest, inputs: Inputs, ranks: bool) -> CompletedInputs:
        if not 1 <= len(call.id) <= MAX_ID_NBYTES:
            raise BadInput(f"sequence_id: expected 1 to {MAX_ID_NBYTES} bytes, got {len(call.id)}")
        roles = self._read(manifest)[1]
        sent = _listed(inputs, manifest)
        of_user = {name: column for name, column in sent.items() if name in roles.user}
        change = APPEND if call.change == SCORE and of_user else call.change
        scores = ranks or _scores(change, sent, roles)
        name = self._name(call, manifest.model)
        if call.releases and not sent and not ranks:
            return CompletedInputs(inputs, scores=False, computes=False)
        if change == PREPARE and of_user:
            user_inputs = self._prepared(call, name, manifest, roles, sent)
        elif change in (SCORE, PREPARE):
            user_inputs = self._found(call, name, manifest, roles, sent)
        else:
            user_inputs = self._changed(call, name, change, manifest, roles, sent)
        completed = {**user_inputs, **{name: column for name, column in sent.items() if name not in roles.user}}
        return CompletedInputs(completed, scores, scores or change == PREPARE)

    def release(self, call: UserCall, model: str) -> None:
        """Forget a user (KeptUsers.release)."""
        name = self._name(call, model)
        with self._words.locked(name):
            # After a change or a score the version is no longer that before the request.
            if call.expected is not None and not call.version:
                words = self._words.read_held(name)
                if words is not None and version_of(words) != call.expected:
                    raise _conflict(version_of(words), call.expected)
            self._words.forget(name)
        call.version = 0
        self._of(model).counters.changed(RELEASE)

    def _found(self, call: UserCall, name: StateName, manifest: Manifest, roles: InputRoles, sent: Inputs) -> Inputs:
        words = self._words.read(name)
        if words is not None:
            call.version = version_of(words)
            _check_version(call)
            user_inputs = _fitting(unpacked(words), manifest)
        else:
            user_inputs = {}
            if call.expected is not None:
                raise _gone()
        _check_whole(user_inputs, sent, manifest, roles)
        return user_inputs

    def _prepared(self, call: UserCall, name: StateName, manifest: Manifest, roles: InputRoles, sent: Inputs) -> Inputs:
        specs = {i.name for i in manifest.inputs} - roles.candidates
        user_inputs = {n: c for n, c in sent.items() if n in specs and (n in roles.user or _rows(manifest, n, c) == 1)}
        for sequence in manifest.sequences:
            # Nothing that is cut could stay: a list has its newest event last.
            events = cut(_events(user_inputs, sequence, manifest), sequence)
            if events:
                user_inputs |= {n: _list(column) for n, column in events.items()}
        _check_rows(user_inputs, manifest)
        missing = roles.user - user_inputs.keys() - manifest.fillers.keys()
        if missing:
            raise BadInput(f"input {min(missing)!r} is missing: expected all inputs of the user")
        for _ in range(ATTEMPTS):
            erasures = self._store.erasures
            with self._words.locked(name):
                words = self._words.read_held(name)
                call.version = 0 if words is None else version_of(words)
                if call.expected is not None:
                    _check_version(call)
                if self._keep(call, name, manifest, user_inputs, erasures, PREPARE):
                    return user_inputs
        raise _erasing()

    def _changed(
        self, call: UserCall, name: StateName, change: str, manifest: Manifest, roles: InputRoles, sent: Inputs
    ) -> Inputs:
        of_user = {name: column for name, column in sent.items() if name in roles.user}
        of_sequences = {name for sequence in manifest.sequences for name in sequence.inputs}
        _check_rows(of_user, manifest)
        for _ in range(ATTEMPTS):
            erasures = self._store.erasures
            with self._words.locked(name):
                words = self._words.read_held(name)
                if words is None:
                    # Events are not the whole history. A key may be all that it takes.
                    if change != APPEND or call.expected is not None or not of_user.keys().isdisjoint(of_sequences):
                        raise _gone()
                    _check_whole({}, sent, manifest, roles)
                    return of_user
                call.version = version_of(words)
                _check_version(call)
                user_inputs = dict(_fitting(unpacked(words), manifest))
                _check_whole(user_inputs, sent, manifest, roles)
                for sequence in manifest.sequences:
                    events = _events(of_user, sequence, manifest)
                    if events:
                        before = {n: _values(user_inputs[n]) for n in sequence.inputs if n in user_inputs}
                        if unkept := events.keys() - before.keys():
                            if all(n in manifest.fillers and manifest.fillers[n].kind != UNREAD for n in unkept):
                                raise BadInput(
                                    f"input {min(unkept)!r}: expected a user that was prepared with events, got one "
                                    "whose events an online store has"
                                )
                            # An older version had no such column.
                            raise _gone()
                        if before.keys() - events.keys():
                            other = min(before.keys() - events.keys())
                            raise BadInput(
                                f"input {other!r} is missing: expected the columns that the user's events have"
                            )
                        # A version that keeps fewer events leaves those of others, which may be served again.
                        count = max(sequence.max_length, *map(len, before.values()))
                        wide = replace(sequence, max_length=count)
                        after = changed(change, before, _cut_sent(change, events, wide), wide)
                        user_inputs |= {n: _list(column) for n, column in after.items()}
                user_inputs |= {n: column for n, column in of_user.items() if n not in of_sequences}
                if np.array_equal(packed(call.version, user_inputs), words):
                    return user_inputs
                if self._keep(call, name, manifest, user_inputs, erasures, change):
                    return user_inputs
        raise _erasing()

    def _keep(
        self, call: UserCall, name: StateName, manifest: Manifest, inputs: Inputs, erasures: int, verb: str
    ) -> bool:
        """Write what is kept of a user under the next version; its lock is held. Return False if it was erased."""
        version = max(call.version + 1, int(self._store.now_s * 1e6)) % MAX_VERSION
        words = packed(version, inputs)
        if words.nbytes > self._words.most_nbytes:
            raise TooLarge(
                f"sequence_id: expected at most {self._words.most_nbytes} bytes of a user's inputs, got {words.nbytes}"
            )
        subject, users = _subject(call, manifest.model, self._read(manifest)[2], inputs), self._of(manifest.model)
        name = name._replace(subject=self._names.subject(subject) if subject else UNKNOWN)
        if not self._words.replace(name, words, erasures, users.scope):
            return False
        call.version = version
        users.counters.changed(verb)
        return True

    def _of(self, model: str) -> ModelUsers:
        if (users := self._models.get(model)) is None:
            with self._adding:
                # Below 0: versions' states are counted under numbers above it (user_states).
                users = self._models.setdefault(model, ModelUsers(-1 - len(self._models)))
        return users

    def _name(self, call: UserCall, model: str) -> StateName:
        return self._names.name(call.owner, f"kept/{model}".encode(), call.id)

    def _read(self, manifest: Manifest) -> tuple[Manifest, InputRoles, tuple[str, ...]]:
        read = self._roles.get(manifest.model)
        if read is None or read[0] is not manifest:
            read = self._roles[manifest.model] = (manifest, roles_of(manifest), user_inputs(manifest))
        return read


def _subject(call: UserCall, model: str, names: tuple[str, ...], inputs: Inputs) -> bytes:
    """Return whose inputs are kept, as an erasure names users (state_erasure); b"" if that cannot be told."""
    if not names:
        return call.id
    column: Any = inputs.get(names[0])
    if len(names) > 1 or column is None:
        return b""
    if isinstance(column, Strings):
        return first_of(column.tolist())
    return subject_of(model, int(column.reshape(-1)[0]))


def _scores(change: str, sent: Inputs, roles: InputRoles) -> bool:
    """Return whether a request is scored: it has candidates, or neither a change nor candidates that it could have."""
    if any(name in roles.candidates for name in sent):
        return True
    return not roles.candidates and change == SCORE


def _listed(inputs: Inputs, manifest: Manifest) -> dict[str, Column]:
    """Return inputs with every sequence as a list for each column, without padding."""
    sent = dict(inputs)
    for sequence in manifest.sequences:
        unpack(sent, sequence)
        names = [name for name in sequence.inputs if name in sent]
        lists = [column for name in names if isinstance(column := sent[name], Ragged) and is_sound(column)]
        aligned = len(lists) == len(names) and len({len(column.values) for column in lists}) == 1
        if sequence.padding is not None and aligned and names[0] == sequence.inputs[0]:
            sent |= zip(names, without_padding(lists, 0, sequence.padding))
    for spec in manifest.inputs:
        empty = sent.get(spec.name)
        if spec.ragged and isinstance(empty, Ragged) and not len(empty.values):
            # An empty list has no type of its own.
            sent[spec.name] = Ragged(_empty(spec), empty.row_splits)
    return sent


def _empty(spec: Input) -> Any:
    return Strings.of([]) if spec.dtype == "string" else np.empty(0, spec.dtype)


def _events(sent: Inputs, sequence: SequenceEntry, manifest: Manifest) -> dict[str, Any]:
    """Return a sequence's events; {} if the request has none of its columns."""
    names = [name for name in sequence.inputs if name in sent]
    for name in names:
        column = sent[name]
        if not isinstance(column, Ragged) or not is_sound(column) or len(column) != 1:
            raise BadInput(f"input {name!r}: expected one list of events, that of the user")
        if len(column.values) != len(_values(sent[names[0]])):
            raise BadInput(f"input {name!r}: expected a list as long as that of {names[0]!r}")
    missing = [name for name in sequence.inputs if name not in sent and name not in manifest.fillers]
    if names and missing:
        raise BadInput(f"input {missing[0]!r} is missing: expected all columns of {sequence.name!r}")
    return {name: _values(sent[name]) for name in names}


def _cut_sent(change: str, events: Mapping[str, Any], sequence: SequenceEntry) -> Mapping[str, Any]:
    """Return the events that a change is made with: at most as many as are kept."""
    if change != REMOVE:
        return cut(events, sequence)
    name, column = first_of(events.items())
    if len(column) > sequence.max_length:
        raise BadInput(f"input {name!r}: expected at most {sequence.max_length} events to remove, got {len(column)}")
    return events


def _check_whole(inputs: Inputs, sent: Inputs, manifest: Manifest, roles: InputRoles) -> None:
    """Raise UserGone unless the user's inputs are kept, sent, or looked up by keys that are."""
    for name in roles.user - inputs.keys() - sent.keys():
        filler = manifest.fillers.get(name)
        if filler is None or not all(key in sent or key in inputs for key in filler.keys):
            raise _gone()


def _check_rows(sent: Inputs, manifest: Manifest) -> None:
    """Raise BadInput unless inputs have one row, of the types of a model's inputs, and no infinite number."""
    for spec in manifest.inputs:
        if spec.name in sent:
            if not _fits(spec, sent[spec.name]):
                kind = f"lists of {spec.dtype}" if spec.ragged else spec.dtype
                raise BadInput(f"input {spec.name!r}: expected {kind}, got another type")
            if (rows := _rows(manifest, spec.name, sent[spec.name])) != 1:
                raise BadInput(f"input {spec.name!r}: expected one row, that of the user, got {rows}")
            values = _values(sent[spec.name])
            # NaN is a missing value. Infinity would be refused with every request that leaves the input out.
            if (
                isinstance(values, np.ndarray)
                and values.dtype.kind == "f"
                and (infinite := np.flatnonzero(np.isinf(values))).size
            ):
                at = int(infinite[0])
                raise non_finite_input(spec.name, float(values.reshape(-1)[at]), 0, at)


def _rows(manifest: Manifest, name: str, column: Column) -> int:
    columns = next((i.columns for i in manifest.inputs if i.name == name), 0)
    return size_of(column, columns or 1)[0]


def _fitting(inputs: Inputs, manifest: Manifest) -> Inputs:
    specs = {i.name: i for i in manifest.inputs}
    return {name: column for name, column in inputs.items() if name in specs and _fits(specs[name], column)}


def _fits(spec: Input, column: Column) -> bool:
    if isinstance(column, Ragged) != spec.ragged:
        return False
    values = _values(column)
    if spec.dtype == "string" or isinstance(values, Strings):
        return isinstance(values, Strings) == (spec.dtype == "string")
    return bool(values.dtype == np.dtype(spec.dtype)) and (
        spec.ragged or values.size == len(values) * (spec.columns or 1)
    )


def _values(column: Any) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _list(values: Any) -> Ragged:
    return Ragged(values, np.array([0, len(values)], np.int64))


def _check_version(call: UserCall) -> None:
    if call.expected is not None and call.expected != call.version:
        raise _conflict(call.version, call.expected)


def _conflict(version: int, expected: int) -> Conflict:
    return Conflict(f"sequence_version: expected the user's, {version}, got {expected}")


def _gone() -> UserGone:
    return UserGone(
        "sequence_id: nothing is kept under it that this version reads: it was never prepared, was not changed for too "
        "long, or made place for others; prepare it again"
    )


def _erasing() -> NotReady:
    return NotReady("sequence_id: users are being erased; send it again")
