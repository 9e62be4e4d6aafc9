"""Expectations of a suite: what is asked, what is answered, and why an answer of ours is another one.

An expectation holds when the status is the one that was expected and the content is. Wording of errors is free: content
of an error is that it is one. Every miss has its reason in the table, and a miss that has become a hit is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

CLOSE = 1e-5


@dataclass(frozen=True)
class Expectation:
    """name: what is asked, in words. ask: asks a live server; what it answers. expected: what compare() takes. miss:
    why it does not hold; "" where it does."""

    name: str
    ask: Callable[[Any], Any]
    expected: Any
    miss: str = ""


class Anything:
    """Any value."""


@dataclass(frozen=True)
class Has:
    """An object with these keys and values, and maybe others."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Where:
    """A value of which this is true."""

    holds: Callable[[Any], bool]


def same(expected: Any, got: Any) -> bool:
    """Compare two documents: numbers as near as float32 is, integers and floats as one, the rest exactly."""
    if isinstance(expected, Anything):
        return True
    if isinstance(expected, Where):
        return bool(expected.holds(got))
    if isinstance(expected, Has):
        return isinstance(got, dict) and all(k in got and same(v, got[k]) for k, v in expected.values.items())
    if isinstance(expected, dict):
        keys = isinstance(got, dict) and expected.keys() == got.keys()
        return keys and all(same(v, got[k]) for k, v in expected.items())
    if isinstance(expected, (list, tuple)):
        return isinstance(got, (list, tuple)) and len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, bool) or isinstance(got, bool) or not isinstance(expected, (int, float)):
        return bool(type(expected) is type(got) and expected == got)
    if not isinstance(got, (int, float)):
        return False
    return (math.isnan(expected) and math.isnan(got)) or math.isclose(expected, got, rel_tol=CLOSE, abs_tol=CLOSE)


@dataclass(frozen=True)
class Counted:
    """The outcome of a suite. wrong: expectations that hold or miss against their table, each in one line."""

    held: int
    asked: int
    wrong: tuple[str, ...]
    misses: tuple[str, ...]


def count(suite: Iterable[Expectation], server: Any) -> Counted:
    """Ask a server all of a suite."""
    held, asked, wrong, misses = 0, 0, [], []
    for expectation in suite:
        asked += 1
        try:
            got = expectation.ask(server)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
        hit = same(expectation.expected, got)
        held += hit
        if hit != (not expectation.miss):
            shown = json.dumps(got, default=str)[:300]
            wrong.append(f"{expectation.name}: {'holds, though a miss' if hit else f'got {shown}'}")
        elif not hit:
            misses.append(f"{expectation.name}: {expectation.miss}")
    return Counted(held, asked, tuple(wrong), tuple(misses))


ERROR = Where(lambda document: isinstance(document, dict) and list(document) == ["error"] and bool(document["error"]))
"""Of a reply: an error, in whatever words."""


def row(
    name: str, method: str, path: str, body: Any, status: Any, document: Any, miss: str = "", headers: Any = None
) -> Expectation:
    """An expectation over HTTP.

    Args:
        name: What is asked.
        method: Its verb.
        path: Its target.
        body: JSON, or bytes as they are; None for none.
        status: Expected.
        document: Expected of the reply's JSON, or of its text where it is none.
        miss: Why it does not hold.
        headers: Of the request.
    """

    def ask(server: Any) -> list[Any]:
        sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        got, _, data = server.request(method, path, sent, headers)
        try:
            return [got, json.loads(data)]
        except ValueError:
            return [got, data.decode("latin-1")]

    return Expectation(name, ask, [status, document], miss)
