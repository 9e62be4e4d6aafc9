"""The inputs that a request may leave out, and what fills each of them by a key.

Invariants
- What a request sends wins. An input that nothing fills is in every request.
- A key is an input of the request like any other, filled by no other key. One that the model itself does not read may
  be left out: it is needed only if something is to be filled by it.
- What a sequence has and the network does not read, such as times, may be left out.

What is looked up outside of the process fills before the request is bound to a plan (processor.features.input_lookup);
an entity fills after that, with each batch that reads the request (processor.features.entity_records).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.entities import EntityEntry
from freshet_serving.processor.package.sequences import SequenceEntry, expected_lists

ENTITY, UNREAD = "features of entity", "key"


class InputFiller(NamedTuple):
    """The filler of an input that a request leaves out, by the inputs `keys`.

    Attributes:
        kind: What it is, in the plural, for messages: ENTITY, the word of an extension, or UNREAD for a key or another
            input that the model does not read, which nothing has to fill.
        name: The entity, or what the extension calls it; "" for what is not read.
    """

    kind: str
    name: str
    keys: tuple[str, ...]


def input_fillers(
    filled: Mapping[str, InputFiller],
    entities: Sequence[EntityEntry],
    read: Collection[str],
    sequences: Sequence[SequenceEntry] = (),
) -> dict[str, InputFiller]:
    """Return the filler of each input that a request may leave out; `read` has no inputs of sequences."""
    events = {s.time for s in sequences} | {c.input for s in sequences for c in s.columns}
    unread = [name for s in sequences for name in s.inputs if name not in events and name not in read]
    fillers = dict.fromkeys(unread, InputFiller(UNREAD, "", ()))
    for name, filler in filled.items():
        fillers[name] = filler
        fillers |= {key: InputFiller(UNREAD, "", ()) for key in filler.keys if key not in read}
    for entity in entities:
        fillers |= dict.fromkeys(entity.inputs, InputFiller(ENTITY, entity.name, (entity.key,)))
        if entity.key not in read:
            fillers[entity.key] = InputFiller(UNREAD, "", ())
    return fillers


def missing_input(
    name: str, fillers: Mapping[str, InputFiller], sent: Collection[str], sequences: Sequence[SequenceEntry] = ()
) -> BadInput:
    """Return the error of a request that lacks an input; `sent` are those that it has."""
    filler = fillers.get(name)
    if filler is None:
        return BadInput(f"input {name!r} is missing{expected_lists(name, sequences)}")
    keys = ", ".join(repr(key) for key in filler.keys if key not in sent)
    return BadInput(
        f"input {name!r} is missing: expected it, or {keys}, by which {filler.kind} {filler.name!r} fill it"
    )
