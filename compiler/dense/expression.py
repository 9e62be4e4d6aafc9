"""Parse expressions over named numbers: `ctr * cvr ** 0.5 * price`.

    sum     = product { ("+" | "-") product }
    product = sign { ("*" | "/") sign }
    sign    = ("-" | "+") sign | power
    power   = atom [ "**" sign ]
    atom    = number | name | function "(" sum { "," sum } ")" | "(" sum ")"

Anything else is refused, and no text is ever executed. Length, depth and number of constants are bounded. The result is
a tree of operations and leaves; constants are identified by their position in the text, so that two expressions of
equal structure differ only in values.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from freshet_serving.processor.errors import BadInput

MAX_LENGTH = 1000
MAX_TOKENS = 200
MAX_DEPTH = 32
FUNCTIONS = {"abs": 1, "exp": 1, "log": 1, "sqrt": 1, "sigmoid": 1, "min": 2, "max": 2}

_TOKEN = re.compile(
    r"\s*(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_][\w.]*|\*\*|[-+*/(),])",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant number `place` of the expression, counted from the left."""

    place: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: `what` is one of + - * / ** neg, or of FUNCTIONS."""

    what: str
    operands: tuple[Expression, ...]


Expression = Name | Constant | Operation


@dataclass(frozen=True, slots=True)
class ParsedExpression:
    """A parsed expression: its constants by place, and the names that it reads, in order of appearance."""

    tree: Expression
    constants: tuple[float, ...]
    names: tuple[str, ...]


def parse(text: str, where: str) -> ParsedExpression:
    """Parse an expression, called `where` in messages; raise BadInput, with the position, if it is invalid."""
    return _Parser(text, where).parse()


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._where, self._text = where, text
        if len(text) > MAX_LENGTH:
            raise BadInput(f"{where}: expected at most {MAX_LENGTH} characters, got {len(text)}")
        self._tokens = list(self._split())
        self._at = self._depth = 0
        self._constants: list[float] = []
        self._names: list[str] = []

    def parse(self) -> ParsedExpression:
        tree = self._sum()
        if self._here is not None:
            self._refuse("an operator or the end")
        return ParsedExpression(tree, tuple(self._constants), tuple(dict.fromkeys(self._names)))

    def _split(self) -> list[tuple[str, int]]:
        tokens, at, end = [], 0, len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None or match.end() == at:
                got = self._text[at : at + 1]
                raise BadInput(
                    f"{self._where}: expected a number, a name or an operator at position {at + 1}, got {got!r}"
                )
            tokens.append((match[0].strip(), match.end() - len(match[0].strip())))
            at = match.end()
        if len(tokens) > MAX_TOKENS:
            raise BadInput(f"{self._where}: expected at most {MAX_TOKENS} tokens, got {len(tokens)}")
        return tokens

    @property
    def _here(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _refuse(self, expected: str) -> NoReturn:
        if self._here is None:
            raise BadInput(f"{self._where}: expected {expected} at the end, got nothing")
        token, position = self._tokens[self._at]
        raise BadInput(f"{self._where}: expected {expected} at position {position + 1}, got {token[:40]!r}")

    def _take(self, *tokens: str) -> str | None:
        here = self._here
        if here in tokens:
            self._at += 1
            return here
        return None

    def _want(self, token: str) -> None:
        if self._take(token) is None:
            self._refuse(f"{token!r}")

    def _sum(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadInput(f"{self._where}: expected at most {MAX_DEPTH} levels of nesting")
        left = self._product()
        while (what := self._take("+", "-")) is not None:
            left = Operation(what, (left, self._product()))
        self._depth -= 1
        return left

    def _product(self) -> Expression:
        left = self._sign()
        while (what := self._take("*", "/")) is not None:
            left = Operation(what, (left, self._sign()))
        return left

    def _sign(self) -> Expression:
        negative = False
        while (what := self._take("+", "-")) is not None:
            negative ^= what == "-"
        power = self._power()
        if negative and isinstance(power, Constant):
            self._constants[power.place] *= -1
            return power
        return Operation("neg", (power,)) if negative else power

    def _power(self) -> Expression:
        base = self._atom()
        if self._take("**") is None:
            return base
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadInput(f"{self._where}: expected at most {MAX_DEPTH} levels of nesting")
        power = Operation("**", (base, self._sign()))
        self._depth -= 1
        return power

    def _atom(self) -> Expression:
        here = self._here
        if here is None:
            self._refuse("a number, a name or '('")
        if self._take("(") is not None:
            inner = self._sum()
            self._want(")")
            return inner
        if here[0].isdigit() or here[0] == ".":
            self._at += 1
            value = float(here)
            if not math.isfinite(value) or value > 3e38:
                raise BadInput(f"{self._where}: expected a number within float32, got {here[:40]!r}")
            self._constants.append(value)
            return Constant(len(self._constants) - 1)
        if here[0].isalpha() or here[0] == "_":
            self._at += 1
            if self._take("(") is not None:
                return self._call(here)
            self._names.append(here)
            return Name(here)
        self._refuse("a number, a name or '('")

    def _call(self, function: str) -> Expression:
        if function not in FUNCTIONS:
            raise BadInput(f"{self._where}: expected one of {', '.join(FUNCTIONS)}, got {function[:40]!r}")
        operands = [self._sum()]
        while self._take(",") is not None:
            operands.append(self._sum())
        self._want(")")
        if len(operands) != FUNCTIONS[function]:
            raise BadInput(f"{self._where}: expected {FUNCTIONS[function]} operands of {function}, got {len(operands)}")
        return Operation(function, tuple(operands))
