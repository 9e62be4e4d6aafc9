"""Limit what a request may cost, by its length and its shapes, before any of its values is read.

One table for every way a request arrives: over HTTP and gRPC, as DeepRec's message, through the C interface, from a
caller in this process. Each field is enforced in one place, and a request beyond it is answered 413 with the field's
name:

    max_body_bytes   by the receiver: the ports while a body arrives, Processor.process() for a message
    max_inflation    by serving.codecs.wire.inflate(), while it inflates
    max_json_bytes   by the ports, from the head, and by serving.codecs.wire.load_json(), before it parses
    max_nodes        by load_json(), and by MessageTree for messages: counted in the bytes before parsing
    max_rows         by RequestSize, to which codecs report each input as soon as its shape is known; and again by
    max_ids          processor.features.plan.SparsePlan.bind_inputs(), which every request passes
    max_cells        by processor.features.stage_runs, from the rows and the longest list, before the stage of an
                     imported model runs

Those of JSON and of inflation are no options: what they refuse can be sent as bytes, which cost less to read.
A model may have its own limits of rows, ids and cells (processor.versions.policy); the others apply before the
request's model is known.

Invariant: a refused request has cost no more than its own bytes: no array, list or string was made of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.options import between, option

if TYPE_CHECKING:
    from freshet_serving.processor.package import Input

REQUESTS = "Requests"
request_option = partial(option, heading=REQUESTS)
# Rows computed at once: for each group of so many rows, an input of one row is fetched again from a row store.
ROWS_AT_ONCE = 256
# A compressed body may always inflate to this size: a small request of zeros compresses by more than max_inflation.
FREE_NBYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The limits and their defaults.

    Attributes:
        max_inflation: Largest ratio of a body's decompressed to its compressed size, above FREE_NBYTES.
        max_json_bytes: Largest JSON of a request; binary tensors do not count.
        max_nodes: Most values and names of a JSON document, or fields and values of a message; a string counts twice,
            a nested list, object or message four times.
    """

    max_rows: int = request_option(65_536, "Most rows per request; [model.NAME] can set its own", between(1, 1 << 31))
    max_ids: int = request_option(
        4_000_000,
        "Most ids and strings per request, over all of its inputs; [model.NAME] can set its own",
        between(1, 1 << 31),
        folded=True,
    )
    max_cells: int = request_option(
        1 << 29,
        "Most values that an imported model's own graph computes per request; [model.NAME] can set its own",
        between(1, 1 << 40),
        folded=True,
    )
    max_body_bytes: int = request_option(
        64 << 20, "Largest request body; before and after decompression", between(1, 1 << 32), unit="bytes"
    )
    max_inflation: int = 100
    max_json_bytes: int = 16 << 20
    max_nodes: int = 4_000_000

    @classmethod
    def of(cls, options: RequestLimits) -> RequestLimits:
        """Return the limits among the options of an object that has more."""
        return RequestLimits(**{f.name: getattr(options, f.name) for f in fields(RequestLimits)})

    def over(self, of_model: Mapping[str, int]) -> RequestLimits:
        """Return these limits with a model's own in their place."""
        return replace(self, **of_model)


DEFAULTS = RequestLimits()


class RequestSize:
    """The size of one request, as far as its shapes are known: one object per request, updated with each input."""

    __slots__ = ("_broadcast", "_ids", "_limits", "_repeated_nbytes", "_rows")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._rows = 1
        # Ids of inputs with many rows, and of inputs with one row.
        self._ids = self._broadcast = self._repeated_nbytes = 0

    def add_rows(self, rows: int, where: str) -> None:
        """Count an input, named `where` in messages, by its rows alone; raise TooLarge for too many rows."""
        if rows > self._rows:
            most = self._limits.max_rows
            if rows > most:
                raise TooLarge(
                    f"max_rows: expected at most {most} rows per request, got {rows} in {where}; ask for fewer at once"
                )
            self._rows = rows

    def add(self, spec: Input, rows: int, values: int) -> None:
        """Count an input's rows (0 if they are counted elsewhere) and all their values; raise TooLarge."""
        limits = self._limits
        self.add_rows(rows, spec.name)
        if spec.dtype != "float32":
            if rows == 1:
                self._broadcast += values
            else:
                self._ids += values
        times = -(-self._rows // ROWS_AT_ONCE)
        if self._ids + self._broadcast * times > limits.max_ids:
            expected = f"expected at most {limits.max_ids} ids and strings per request"
            count = f"{self._ids + self._broadcast}"
            if times > 1 and self._broadcast:
                count += f", {self._broadcast} of them in one row for {self._rows} rows, counted {times} times"
            raise TooLarge(f"max_ids: {expected}, got {count}; ask for fewer at once")

    def repeat(self, name: str, times: int, nbytes: int) -> None:
        """Count `nbytes` of values that a request has once and that are copied `times` times for the input `name`.

        A few bytes could otherwise demand any amount of memory. Raises TooLarge beyond max_body_bytes in total.
        """
        self._repeated_nbytes += times * nbytes
        most = self._limits.max_body_bytes
        if self._repeated_nbytes > most:
            raise TooLarge(
                f"max_body_bytes: expected at most {most} bytes of repeated values, got {self._repeated_nbytes} with "
                f"{name}; send them once for each row"
            )
