"""The limits of requests: what one may cost, told by its length and its shapes before a value of it is looked at.

One table for every way a request comes, over HTTP and gRPC, as DeepRec's message, through the C interface, from a
caller in this process. Each field has one place that holds a request to it, and what it refuses is answered 413 by
name:

    max_body_bytes   whoever receives: the ports while a body comes, Processor.process() for a message
    max_inflation    serving.codecs.wire.inflate(), while it inflates
    max_json_bytes   the ports, by what a head says, and serving.codecs.wire.load_json(), before it parses
    max_nodes        load_json(), and processor.eas.message_tree of messages: counted in the bytes, before they parse
    max_rows         Extent, which codecs tell of an input as soon as they know its shape, and of which
    max_ids          processor.features.plan.SparsePlan.bind(), which nobody passes by, asks again

Rows and ids may be a model's own (processor.versions.policy); the rest is spent before it is known whose request it is.

Invariant: what is refused has cost no more than its own bytes: no array, list or string was made of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.options import between, option

if TYPE_CHECKING:
    from freshet_serving.processor.package import Input

REQUESTS = "Requests"
# Rows that are computed at once: a row store is asked again for an input of one row, for so many rows of the others.
ROWS_AT_ONCE = 256
# What a compressed body may become in any case: a body of zeros, of a request that nobody would call large.
FREE_NBYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The limits, and their defaults."""

    max_rows: int = field(
        default=65_536,
        metadata=option("Rows of a request; [model.NAME] may have its own", between(1, 1 << 31), heading=REQUESTS),
    )
    max_ids: int = field(
        default=4_000_000,
        metadata=option(
            "Ids and strings of a request, over all of its inputs; [model.NAME] may have its own",
            between(1, 1 << 31),
            heading=REQUESTS,
            folded=True,
        ),
    )
    max_body_bytes: int = field(
        default=64 << 20,
        metadata=option(
            "Largest request body, also when inflated", between(1, 1 << 32), unit="bytes", heading=REQUESTS
        ),
    )
    max_inflation: int = field(
        default=100,
        metadata=option(
            f"How many times its length a compressed body may become, beyond {FREE_NBYTES >> 10} kB",
            between(1, 1 << 31),
            heading=REQUESTS,
            folded=True,
        ),
    )
    max_json_bytes: int = field(
        default=16 << 20,
        metadata=option(
            "JSON of a request; binary tensors do not count",
            between(1, 1 << 32),
            unit="bytes",
            heading=REQUESTS,
            folded=True,
        ),
    )
    max_nodes: int = field(
        default=4_000_000,
        metadata=option(
            "Values and names of a JSON document, fields and values of a message; a string counts twice, a list, an "
            "object or a message within it four times",
            between(1, 1 << 31),
            heading=REQUESTS,
            folded=True,
        ),
    )

    @classmethod
    def of(cls, options: RequestLimits) -> RequestLimits:
        """The limits among the options of something that has more."""
        return RequestLimits(**{f.name: getattr(options, f.name) for f in fields(RequestLimits)})

    def over(self, own: Mapping[str, int]) -> RequestLimits:
        """These limits, and a model's own in their place."""
        return replace(self, **own)


DEFAULTS = RequestLimits()


class RequestSize:
    """The extent of one request, as far as its shapes are known: one object a request, told of each of its inputs."""

    __slots__ = ("_broadcast", "_ids", "_limits", "_rows")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._rows = 1
        # Of inputs of many rows, and of one.
        self._ids = self._broadcast = 0

    def add_rows(self, rows: int, where: str) -> None:
        """Something of so many rows, of which no more is known; raises TooLarge."""
        if rows > self._rows:
            most = self._limits.max_rows
            if rows > most:
                raise TooLarge(
                    f"max_rows: at most {most} rows a request wanted, got {rows} in {where}; ask for fewer at once"
                )
            self._rows = rows

    def add(self, spec: Input, rows: int, values: int) -> None:
        """An input of so many rows, of so many values in all; raises TooLarge. rows: 0 where they are told
        elsewhere."""
        limits = self._limits
        self.add_rows(rows, spec.name)
        if spec.dtype != "float32":
            if rows == 1:
                self._broadcast += values
            else:
                self._ids += values
        times = -(-self._rows // ROWS_AT_ONCE)
        if self._ids + self._broadcast * times > limits.max_ids:
            wanted = f"at most {limits.max_ids} ids and strings a request wanted"
            got = f"{self._ids + self._broadcast}"
            if times > 1 and self._broadcast:
                got += f", {self._broadcast} of them in one row for {self._rows} and so {times} times"
            raise TooLarge(f"max_ids: {wanted}, got {got}; ask for fewer at once")
