"""Read what a request says about a kept user (processor.features.user_calls), in the words of each protocol.

KServe: parameters of the request, as Triton's clients send them.

    sequence_id        a whole number, or a string of at most 256 bytes; 0 and "" are no sequence
    sequence_start     prepare: what is sent of the user takes the place of what is kept
    sequence_end       the user is forgotten after the answer
    sequence_replace   the events that are sent take the place of those of the same times
    sequence_remove    the events that are sent are taken back
    sequence_version   the version that the user must have; another one is a conflict

TensorFlow Serving: the signature `prepare`, `append`, `replace`, `remove` or `release`, and inputs `sequence_id` (a
string) and `sequence_version`. A model that has an input `sequence_id` itself gets it as ever. Without `sequence_id`
these are ordinary names of signatures.

A number and the string of its digits are the same id. Messages name parameters, never an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.package import UNREAD, InputFiller, Manifest

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import UserCall

# Names of changes are those of processor.features.user_calls, which is loaded with the first request about a user.
ID, VERSION, END = "sequence_id", "sequence_version", "sequence_end"
FLAGS = {"sequence_start": "prepare", "sequence_replace": "replace", "sequence_remove": "remove"}
PARAMETERS = (ID, VERSION, END, *FLAGS)
SCORE, RELEASE = "score", "release"
CHANGES = ("prepare", "append", "replace", "remove")
MAX_READABLE = 64
_readable: dict[int, tuple[Manifest, Manifest]] = {}


class UserInputs(dict[str, Column]):
    def __init__(self, inputs: Mapping[str, Column], call: UserCall) -> None:
        super().__init__(inputs)
        self.call = call


def is_own_input(manifest: Manifest) -> bool:
    """Report whether a model has an input `sequence_id` itself, which is then no kept user's id."""
    return ID in manifest.own_names or any(i.name == ID for i in manifest.inputs)


def readable(manifest: Manifest) -> Manifest:
    """Return the manifest that a request about a kept user is read by: any input may be left out."""
    cached = _readable.get(id(manifest))
    if cached is None or cached[0] is not manifest:
        relaxed = replace(manifest)
        relaxed.fillers.update({i.name: InputFiller(UNREAD, "", ()) for i in manifest.inputs})
        if len(_readable) >= MAX_READABLE:
            _readable.clear()
        cached = _readable[id(manifest)] = (manifest, relaxed)
    return cached[1]


def of_parameters(parameters: Mapping[str, Any]) -> UserCall | None:
    """Return what the parameters of a KServe request say; None if it names no sequence. Raises BadInput."""
    sequence_id = _id(parameters.get(ID), "parameters.")
    if not sequence_id:
        return None
    flags = {name: parameters.get(name, False) for name in (*FLAGS, END)}
    for name, value in flags.items():
        if type(value) is not bool:
            raise BadInput(f"parameters.{name}: expected a boolean, got {json_kind(value)}")
    changes = [name for name in FLAGS if flags[name]]
    if len(changes) > 1:
        raise BadInput(f"parameters: expected one of {', '.join(FLAGS)}, got {' and '.join(changes)}")
    change = FLAGS[changes[0]] if changes else SCORE
    return _call(sequence_id, change, flags[END], _version(parameters.get(VERSION), "parameters."))


def of_names(signature: str, values: Mapping[str, Any]) -> UserCall | None:
    """Return what the signature and two inputs of a TensorFlow Serving request say; None if it names no sequence."""
    sequence_id = _id(values.get(ID), "")
    if not sequence_id:
        return None
    change = signature if signature in CHANGES else SCORE
    return _call(sequence_id, change, signature == RELEASE, _version(values.get(VERSION), ""))


def without_reserved(signature: str) -> str:
    """Return the signature that replies to a request about a kept user."""
    return "" if signature == RELEASE or signature in CHANGES else signature


def take_from_document(document: dict[str, Any], manifest: Manifest) -> UserCall | None:
    """Take what a request of TensorFlow Serving's REST API says about a kept user out of it. Raises BadInput."""
    rows: Any = document.get("instances")
    signature = document.get("signature_name", "")
    by_row = type(rows) is list and len(rows) > 0
    first = rows[0] if by_row else document.get("inputs")
    if type(first) is not dict or ID not in first or type(signature) is not str:
        return None
    if is_own_input(manifest):
        return None
    holders: list[Any] = rows if by_row else [first]
    if any(type(holder) is not dict for holder in holders):
        return None
    values: dict[str, Any] = {}
    for name in (ID, VERSION):
        sent = [_only_row(holder[name], name) for holder in holders if name in holder]
        if sent and (len(sent) != len(holders) or any(value != sent[0] for value in sent)):
            raise BadInput(f"{name}: expected the same in every row: a request is about one user")
        values |= {name: sent[0]} if sent else {}
    call = of_names(signature, values)
    bare = [{name: value for name, value in holder.items() if name not in values} for holder in holders]
    document |= {"instances": bare} if by_row else {"inputs": bare[0]}
    if call is not None:
        document["signature_name"] = without_reserved(signature)
    return call


def _call(sequence_id: bytes, change: str, releases: bool, expected: int | None) -> UserCall:
    from freshet_serving.processor.features.user_calls import UserCall

    return UserCall(sequence_id, change, releases, expected)


def _only_row(value: Any, name: str) -> Any:
    """Return the value of a column [n] or [n, 1] of equal values, or of a row of it."""
    rows = value if type(value) is list else [value]
    values = list(chain.from_iterable(row if type(row) is list else [row] for row in rows))
    # Nested ones are not compared: Python refuses to compare lists of a thousand levels.
    if not values or any(type(v) in (list, dict) or v != values[0] for v in values):
        raise BadInput(f"{name}: expected one value: a request is about one user")
    return values[0]


def _id(value: Any, where: str) -> bytes:
    if value is None or (type(value) is int and value == 0):
        return b""
    if type(value) is int and -(2**63) <= value < 2**64:
        return b"%d" % value
    data = value.encode(errors="surrogatepass") if type(value) is str else value
    from freshet_serving.processor.features.user_calls import MAX_ID_NBYTES

    if type(data) is not bytes or len(data) > MAX_ID_NBYTES:
        kind = f"{len(data)} bytes" if type(data) is bytes else json_kind(value)
        raise BadInput(f"{where}{ID}: expected 64 bits of a whole number, or {MAX_ID_NBYTES} bytes of text, got {kind}")
    return data


def _version(value: Any, where: str) -> int | None:
    if value is None:
        return None
    from freshet_serving.processor.features.user_calls import MAX_VERSION

    if type(value) is not int or not 0 <= value < MAX_VERSION:
        raise BadInput(f"{where}{VERSION}: expected a whole number from 0 to {MAX_VERSION - 1}, got {json_kind(value)}")
    return int(value)
