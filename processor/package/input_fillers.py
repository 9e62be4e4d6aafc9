"""The inputs that a request may leave out, and what fills each of them by a key.

Invariants
- An input that nothing fills is in every request.
- What a request sends wins: an input that is there is never filled.
- A key is an input of the request like any other; no key is filled by another key. A key that the model itself does
  not read may be left out, too: it is needed only if something is to be filled by it.
- What a sequence has and the network does not read, such as times, may be left out.

Online features fill before the request is bound to a plan (processor.online_features.feature_lookup); an entity fills
after that, with each batch that reads the request (processor.features.entity_records).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.entities import EntityEntry
from freshet_serving.processor.package.feature_groups import FeatureGroup
from freshet_serving.processor.package.sequences import SequenceEntry
from freshet_serving.processor.package.transforms import ColumnShape
from freshet_serving.processor.package.value_types import VALUE_TYPES

ONLINE, ENTITY, UNREAD = "online features", "features of entity", "key"


class InputFiller(NamedTuple):
    """The filler of an input that a request leaves out.

    Attributes:
        kind: ONLINE, ENTITY, or UNREAD for a key or another input that the model does not read, which nothing has to
            fill.
        name: The group of features or the entity; "" for what is not read.
        keys: The inputs by which it is filled.
    """

    kind: str
    name: str
    keys: tuple[str, ...]


def input_fillers(
    groups: Sequence[FeatureGroup],
    entities: Sequence[EntityEntry],
    read: Collection[str],
    sequences: Sequence[SequenceEntry] = (),
) -> dict[str, InputFiller]:
    """Return the filler of each input that a request may leave out.

    Args:
        groups: The model's groups of online features.
        entities: Its entities.
        read: The inputs that the model reads, those of sequences apart.
        sequences: Its sequences.
    """
    events = {s.time for s in sequences} | {c.input for s in sequences for c in s.columns}
    unread = [name for s in sequences for name in s.inputs if name not in events and name not in read]
    fillers = dict.fromkeys(unread, InputFiller(UNREAD, "", ()))
    for group in groups:
        for feature in group.features:
            keys = tuple(key.input for key in feature.keys)
            fillers[feature.input] = InputFiller(ONLINE, group.name, keys)
            fillers |= {key: InputFiller(UNREAD, "", ()) for key in keys if key not in read}
    for entity in entities:
        fillers |= dict.fromkeys(entity.inputs, InputFiller(ENTITY, entity.name, (entity.key,)))
        if entity.key not in read:
            fillers[entity.key] = InputFiller(UNREAD, "", ())
    return fillers


def missing_input(name: str, fillers: Mapping[str, InputFiller], sent: Collection[str]) -> BadInput:
    """Return the error of a request that lacks an input.

    Args:
        name: The input.
        fillers: The model's fillers.
        sent: The inputs that the request has.
    """
    filler = fillers.get(name)
    if filler is None:
        return BadInput(f"input {name!r} is missing")
    keys = ", ".join(repr(key) for key in filler.keys if key not in sent)
    return BadInput(
        f"input {name!r} is missing: expected it, or {keys}, by which {filler.kind} {filler.name!r} fill it"
    )


def check_online_features(groups: Sequence[FeatureGroup], inputs: Mapping[str, ColumnShape]) -> None:
    """Check that groups of online features and a model's inputs fit each other.

    Args:
        groups: The groups.
        inputs: The inputs of a request by name.

    Raises:
        BadInput: They do not; the message names the group and the input.
    """
    names = [feature.input for group in groups for feature in group.features]
    for group in groups:
        where = f"manifest.online_features[{group.name}]"
        _want([g.name for g in groups].count(group.name) == 1, f"{where}: expected every name once")
        for feature in group.features:
            name = feature.input
            _want(name in inputs, f"{where}: the input {name[:64]!r} is not among manifest.inputs")
            _want(names.count(name) == 1, f"{where}: the input {name[:64]!r} is filled by two features")
            kind, spec = VALUE_TYPES[feature.type], inputs[name]
            fits = kind.fills(spec.dtype, spec.ragged) and not spec.columns
            _want(fits, f"{where}: type {kind.name} does not fill the input {name[:64]!r}, {_described(spec)}")
            for key in feature.keys:
                _want(key.input in inputs, f"{where}: the key {key.input[:64]!r} is not among manifest.inputs")
                _want(key.input not in names, f"{where}: the key {key.input[:64]!r} is filled by a feature itself")
                spec, wanted = inputs[key.input], "int64" if VALUE_TYPES[key.type].dtype is not None else "string"
                single = not spec.ragged and not spec.columns and spec.dtype == wanted
                _want(single, f"{where}: the key {key.input[:64]!r}: expected one {wanted} a row, {_described(spec)}")


def _described(spec: ColumnShape) -> str:
    rows = "lists" if spec.ragged else f"{spec.columns} columns" if spec.columns else "one value"
    return f"which has {rows} of {spec.dtype}"


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)
