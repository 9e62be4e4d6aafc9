"""Check a Triton config.pbtxt beside a model, and report in one line each what is wrong and what is ignored.

Names of inputs and outputs are compared with the model's. All other settings follow from the model or are set
elsewhere; they are listed so that users do not assume that they take effect. The text is untrusted: its size is
bounded, and no setting in it is applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest

CONFIG = "config.pbtxt"
MAX_NBYTES = 256 << 10
MAX_DEPTH = 16
MAX_SHOWN = 12
TOKEN = re.compile(r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[\w.+-]+)|(?P<mark>.)""")
OPENING = {"{": "}", "<": ">"}
READ = {"name", "platform", "backend", "default_model_filename", "input", "output"}
INSTEAD = {
    "max_batch_size": "batch sizes follow from measured costs",
    "version_policy": 'versions = "all" or similar under [model.NAME] of the server\'s TOML file',
    "dynamic_batching": "always on",
    "instance_group": "set the server's sessions and workers",
    "model_warmup": "record requests for warm-up",
    "parameters": "not used by any backend",
    "optimization": "chosen by the compiler",
}

Fields = dict[str, list[Any]]
"""Fields of a message: all values by name; each value is a text, a word, or fields."""


def parse(text: str) -> Fields:
    """Parse a protobuf text and return its fields. Raises BadInput if it is malformed."""
    tokens = _tokens(text)
    fields, end = _fields(tokens, "", 0)
    if end:
        raise BadInput(f"{CONFIG}: expected a field, got {end!r}")
    return fields


def remarks(text: str, manifest: Manifest | None) -> list[tuple[bool, str]]:
    """Return the remarks on a config.pbtxt, each a line and whether it is an error; no manifest, no check of names."""
    try:
        fields = parse(text)
    except BadInput as error:
        return [(True, f"{error}; the file is ignored")]
    lines = []
    if manifest is not None:
        inputs = [*(i.name for i in manifest.inputs), *manifest.own_names]
        outputs = list(dict.fromkeys([*(o.name for o in manifest.outputs), *manifest.replies()]))
        sides = (("input", inputs), ("output", outputs))
        for side, names in sides:
            named = [n for entry in fields.get(side, ()) if isinstance(entry, dict) for n in entry.get("name", ())]
            odd = [n for n in named if str(n) not in names and not str(n).endswith(".row_splits")]
            if odd:
                shown = ", ".join(names[:MAX_SHOWN])
                lines.append((True, f"{CONFIG}: expected {side}s of the model, {shown}, got {str(odd[0])[:64]!r}"))
    passed = [f"{name[:64]} ({INSTEAD[name]})" if name in INSTEAD else name[:64] for name in fields if name not in READ]
    if passed:
        more = f", and {len(passed) - MAX_SHOWN} more" if len(passed) > MAX_SHOWN else ""
        lines.append((False, f"{CONFIG} is only checked for names; ignored: {', '.join(passed[:MAX_SHOWN])}{more}"))
    return lines


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in TOKEN.finditer(text):
        if match[0] in ('"', "'"):
            # Searching for the other quote of many unmatched ones would take quadratic time.
            raise BadInput(f"{CONFIG}: expected quoted text on one line, got an unmatched quote")
        if match.lastgroup is not None:
            yield match.lastgroup, match[0]


def _fields(tokens: Iterator[tuple[str, str]], closing: str, depth: int) -> tuple[Fields, str]:
    """Return the fields up to the closing mark, and a mark that closes nothing ("" if the text is correct)."""
    fields: Fields = {}
    for kind, token in tokens:
        if token in (",", ";"):
            continue
        if kind == "mark" and token == closing:
            return fields, ""
        if kind != "word":
            return fields, token
        fields.setdefault(token, []).extend(_value(tokens, token, depth))
    if closing:
        raise BadInput(f"{CONFIG}: expected {closing!r}, got the end")
    return fields, ""


def _value(tokens: Iterator[tuple[str, str]], name: str, depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        raise BadInput(f"{CONFIG}: expected at most {MAX_DEPTH} levels, got more")
    kind, token = next(tokens, ("", "the end"))
    if token == ":":
        kind, token = next(tokens, ("", "the end"))
    if token in OPENING:
        return [_message(tokens, token, name, depth)]
    if token == "[":
        return _list(tokens, name, depth)
    if kind == "text":
        return [token[1:-1]]
    if kind != "word":
        raise BadInput(f"{CONFIG}: expected a value of {name[:64]!r}, got {token[:64]!r}")
    return [token]


def _message(tokens: Iterator[tuple[str, str]], opening: str, name: str, depth: int) -> Fields:
    fields, odd = _fields(tokens, OPENING[opening], depth + 1)
    if odd:
        raise BadInput(f"{CONFIG}: expected a field of {name[:64]!r}, got {odd[:64]!r}")
    return fields


def _list(tokens: Iterator[tuple[str, str]], name: str, depth: int) -> list[Any]:
    values: list[Any] = []
    for kind, token in tokens:
        if token == "]":
            return values
        if token in OPENING:
            values.append(_message(tokens, token, name, depth))
        elif kind != "mark":
            values.append(token[1:-1] if kind == "text" else token)
    raise BadInput(f"{CONFIG}: expected ']' after {name[:64]!r}, got the end")
