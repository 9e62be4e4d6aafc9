"""The users whose inputs are kept: implements processor.features.user_calls.KeptUsers.

A kept user is (owner, model, sequence id) -> the user's inputs as they were sent, and a version that each change
replaces. They lie beside what was computed of users, under the same budget, time to live and erasures (kept_words).
What is computed of a user is found by the inputs alone (user_states), so a request that is completed from here is
answered as one that was sent whole, under the generation that its reply names.

Invariants
- A change reads, merges and replaces under the user's lock: of two that come at once, each meets the result of the
  other, in any process.
- Versions of a user ascend, and no two users that were ever kept under one id have the same: they are taken from the
  machine's clock where it is ahead.
- What is kept has one row, and the types that the model's inputs have. What an older version of the model had
  otherwise is not used.
- An erasure reaches a user by the key in what is kept, whatever the id; without such a key by the id.
- Whoever does not own an id finds what is found under an id that nobody has used: the name is a hash of both.
- No message has an id, or a value.

Which inputs are kept: those of the user, and others with one row that a prepare sends and that are not the candidates'.
They stand in for what later requests leave out. A change replaces inputs that are no sequence's. One that changes
nothing keeps the version.

Costs: a look of a few microseconds and a copy of the inputs; a change writes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, Conflict, NotReady, TooLarge, UserGone
from freshet_serving.processor.extensions.user_state.event_merging import changed, cut
from freshet_serving.processor.extensions.user_state.kept_columns import packed, unpacked, version_of
from freshet_serving.processor.extensions.user_state.kept_words import KeptWords
from freshet_serving.processor.extensions.user_state.state_erasure import subject_of
from freshet_serving.processor.extensions.user_state.state_names import StateNames
from freshet_serving.processor.extensions.user_state.state_store import StateName, StateStore
from freshet_serving.processor.features.input_reader import size_of
from freshet_serving.processor.features.sequences import is_sound, unpack, without_padding
from freshet_serving.processor.features.user_calls import (
    APPEND,
    MAX_ID_NBYTES,
    MAX_VERSION,
    PREPARE,
    SCORE,
    CompletedInputs,
    InputRoles,
    UserCall,
    roles_of,
)
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Input, Manifest, SequenceEntry
from freshet_serving.processor.versions.erasure import user_input

ATTEMPTS = 3
"""How often a change is made anew because something was erased meanwhile."""
Inputs = Mapping[str, Column]


class KeptUsers:
    """The kept users as one process reads and changes them."""

    def __init__(self, store: StateStore, names: StateNames) -> None:
        """Take the store.

        Args:
            store: The store.
            names: Names of what is kept in it.
        """
        self._store, self._names, self._words = store, names, KeptWords(store)
        self._roles: dict[str, tuple[Manifest, InputRoles, str]] = {}

    def complete(self, call: UserCall, manifest: Manifest, inputs: Inputs, ranks: bool) -> CompletedInputs:
        """Make a call's change, and complete a request's inputs (KeptUsers.complete)."""
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
            kept = self._prepared(call, name, manifest, roles, sent)
        elif change in (SCORE, PREPARE):
            kept = self._found(call, name, manifest, roles, sent)
        else:
            kept = self._changed(call, name, change, manifest, roles, sent)
        completed = {**kept, **{name: column for name, column in sent.items() if name not in roles.user}}
        return CompletedInputs(completed, scores, scores or change == PREPARE)

    def release(self, call: UserCall, model: str) -> None:
        """Forget a user (KeptUsers.release)."""
        name = self._name(call, model)
        with self._words.locked(name):
            self._words.forget(name)
        call.version = 0

    def _found(self, call: UserCall, name: StateName, manifest: Manifest, roles: InputRoles, sent: Inputs) -> Inputs:
        """Return what is kept for a request that changes nothing."""
        words = self._words.read(name)
        if words is not None:
            call.version = version_of(words)
            _check_version(call)
            kept = _fitting(unpacked(words), manifest)
        else:
            kept = {}
            if call.expected is not None:
                raise _gone()
        _check_whole(kept, sent, manifest, roles)
        return kept

    def _prepared(self, call: UserCall, name: StateName, manifest: Manifest, roles: InputRoles, sent: Inputs) -> Inputs:
        """Keep the inputs of a user in place of what is kept."""
        specs = {i.name for i in manifest.inputs} - roles.candidates
        kept = {n: c for n, c in sent.items() if n in specs and (n in roles.user or _rows(manifest, n, c) == 1)}
        for sequence in manifest.sequences:
            events = _events(kept, sequence, manifest)
            if events:
                kept |= {n: _list(column) for n, column in events.items()}
        _check_rows(kept, manifest)
        missing = roles.user - kept.keys() - manifest.fillers.keys()
        if missing:
            raise BadInput(f"input {min(missing)!r} is missing: expected all inputs of the user")
        for _ in range(ATTEMPTS):
            erasures = self._store.erasures
            with self._words.locked(name):
                words = self._words.read_held(name)
                call.version = 0 if words is None else version_of(words)
                if call.expected is not None:
                    _check_version(call)
                if self._keep(call, name, manifest, kept, erasures):
                    return kept
        raise _erasing()

    def _changed(
        self, call: UserCall, name: StateName, change: str, manifest: Manifest, roles: InputRoles, sent: Inputs
    ) -> Inputs:
        """Change what is kept of a user by what a request sends of it."""
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
                kept = dict(_fitting(unpacked(words), manifest))
                _check_whole(kept, sent, manifest, roles)
                for sequence in manifest.sequences:
                    events = _events(of_user, sequence, manifest)
                    if events:
                        before = {n: _values(kept[n]) for n in sequence.inputs if n in kept}
                        if before.keys() != events.keys():
                            other = min(before.keys() ^ events.keys())
                            raise BadInput(f"input {other!r}: expected the columns that the user's events have")
                        kept |= {n: _list(column) for n, column in changed(change, before, events, sequence).items()}
                kept |= {n: column for n, column in of_user.items() if n not in of_sequences}
                if np.array_equal(packed(call.version, kept), words):
                    return kept
                if self._keep(call, name, manifest, kept, erasures):
                    return kept
        raise _erasing()

    def _keep(self, call: UserCall, name: StateName, manifest: Manifest, kept: Inputs, erasures: int) -> bool:
        """Write what is kept of a user under the next version; its lock is held. Return False if it was erased."""
        version = max(call.version + 1, int(self._store.now_s * 1e6)) % MAX_VERSION
        words = packed(version, kept)
        if words.nbytes > self._words.most_nbytes:
            raise TooLarge(
                f"sequence_id: expected at most {self._words.most_nbytes} bytes of a user's inputs, got {words.nbytes}"
            )
        if not self._words.replace(self._of_user(name, manifest, kept), words, erasures):
            return False
        call.version = version
        return True

    def _of_user(self, name: StateName, manifest: Manifest, kept: Inputs) -> StateName:
        """Return a name with the user's key as its subject; as it is if the key is not kept."""
        key = kept.get(self._read(manifest)[2])
        if key is None:
            return name
        number = (
            int(hash_strings(key, manifest.tables[0].hash_seed)[0])
            if isinstance(key, Strings)
            else int(_values(key)[0])
        )
        return name._replace(subject=self._names.subject(subject_of(manifest.model, number)))

    def _name(self, call: UserCall, model: str) -> StateName:
        return self._names.name(call.owner, f"kept/{model}".encode(), call.id, call.id)

    def _read(self, manifest: Manifest) -> tuple[Manifest, InputRoles, str]:
        """Return a manifest with its inputs' roles and the input with users' keys, "" for none."""
        known = self._roles.get(manifest.model)
        if known is None or known[0] is not manifest:
            known = self._roles[manifest.model] = (manifest, roles_of(manifest), user_input(manifest))
        return known


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
    return sent


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
    # Nothing that is cut could stay: a list has its newest event last.
    return cut({name: _values(sent[name]) for name in names}, sequence)


def _check_whole(kept: Inputs, sent: Inputs, manifest: Manifest, roles: InputRoles) -> None:
    """Raise UserGone unless the user's inputs are kept, sent, or looked up by keys that are."""
    for name in roles.user - kept.keys() - sent.keys():
        filler = manifest.fillers.get(name)
        if filler is None or not all(key in sent or key in kept for key in filler.keys):
            raise _gone()


def _check_rows(sent: Inputs, manifest: Manifest) -> None:
    """Raise BadInput unless inputs have one row, in the types of a model's inputs."""
    for spec in manifest.inputs:
        if spec.name in sent:
            if not _fits(spec, sent[spec.name]):
                kind = f"lists of {spec.dtype}" if spec.ragged else spec.dtype
                raise BadInput(f"input {spec.name!r}: expected {kind}, got another type")
            if (rows := _rows(manifest, spec.name, sent[spec.name])) != 1:
                raise BadInput(f"input {spec.name!r}: expected one row, that of the user, got {rows}")


def _rows(manifest: Manifest, name: str, column: Column) -> int:
    columns = next((i.columns for i in manifest.inputs if i.name == name), 0)
    return size_of(column, columns or 1)[0]


def _fitting(kept: Inputs, manifest: Manifest) -> Inputs:
    """Return what a version reads of a user's inputs."""
    specs = {i.name: i for i in manifest.inputs}
    return {name: column for name, column in kept.items() if name in specs and _fits(specs[name], column)}


def _fits(spec: Input, column: Column) -> bool:
    """Return whether a column has the type of an input."""
    if isinstance(column, Ragged) != spec.ragged:
        return False
    values = _values(column)
    if spec.dtype == "string" or isinstance(values, Strings):
        return isinstance(values, Strings) == (spec.dtype == "string") or not len(values)
    return bool(values.dtype == np.dtype(spec.dtype)) and (
        spec.ragged or values.size == len(values) * (spec.columns or 1)
    )


def _values(column: Any) -> Any:
    return column.values if isinstance(column, Ragged) else column


def _list(values: Any) -> Ragged:
    return Ragged(values, np.array([0, len(values)], np.int64))


def _check_version(call: UserCall) -> None:
    if call.expected is not None and call.expected != call.version:
        raise Conflict(f"sequence_version: expected the user's, {call.version}, got {call.expected}")


def _gone() -> UserGone:
    return UserGone(
        "sequence_id: nothing is kept under it that this version reads: it was never prepared, was not changed for too "
        "long, or made place for others; prepare it again"
    )


def _erasing() -> NotReady:
    return NotReady("sequence_id: users are being erased; send it again")
