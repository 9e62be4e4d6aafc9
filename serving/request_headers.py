"""Read request headers that mean the same in every protocol: headers over HTTP, metadata over gRPC.

x-sticky-key    requests with one key are answered by one version of a split (processor.versions.traffic)
x-return-features  requests the features that were looked up, which are returned in x-features (scope "features")
x-top-items     requests so many best items instead of scores: of the whole table, or of the candidates that are sent
x-model-digest  requests the digest of the generation that answers, which is returned under the same name
x-request-id    returned with the reply, and written to logs, traces and recordings
traceparent     W3C trace context (serving.telemetry.tracing)

A reply has

x-features-missing  inputs that the request left out and no online store had, as NAME=REASON; they had their defaults
x-unknown-rows, x-dropped-rows  rows of the request, from 0, whose key the model has no features for: "2, 5-7"; dropped
                rows have no place in the outputs
x-sequence-version  version of the kept user after the request (processor.features.user_calls)
x-state-generation  generation of the user's part, if it was kept and is older or rounded
x-unfilled      number of best items that each user lacks
x-ignored-inputs  inputs that the model does not have, where TensorFlow Serving ignores them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.sessions.request import MAX_TOP_ITEMS
from freshet_serving.serving.codecs.wire import Headers, show

STICKY_KEY, REQUEST_ID, TRACEPARENT = b"x-sticky-key", b"x-request-id", b"traceparent"
MODEL_DIGEST = b"x-model-digest"
FEATURES_MISSING, RETURN_FEATURES, LOOKED_UP = b"x-features-missing", b"x-return-features", b"x-features"
TOP_ITEMS, ITEM_GENERATION, UNFILLED = b"x-top-items", b"x-item-generation", b"x-unfilled"
SEQUENCE_VERSION, STATE_GENERATION = b"x-sequence-version", b"x-state-generation"
UNKNOWN_ROWS, DROPPED_ROWS = b"x-unknown-rows", b"x-dropped-rows"
MAX_ROWS_NBYTES = 4096
"""Bytes of a header that lists rows: HTTP clients accept 8 kB of headers, gRPC's of metadata."""
MAX_LISTED_NBYTES = 2048
"""Bytes of a header that lists inputs."""
MAX_REQUEST_ID_NBYTES = 128
TIMED_EVERY = 16
"""One request in this many has its parsing and encoding timed."""


def top_items_of(headers: Headers) -> int:
    """Return x-top-items, 0 if absent; raise BadInput unless it is a number of items that a request may ask for."""
    text = headers.get(TOP_ITEMS)
    if text is None:
        return 0
    if text.isdigit() and len(text) <= len(str(MAX_TOP_ITEMS)) and 1 <= int(text) <= MAX_TOP_ITEMS:
        return int(text)
    raise BadInput(f"x-top-items: expected a whole number from 1 to {MAX_TOP_ITEMS}, got {show(text)}")


def list_defaulted(defaulted: Mapping[str, str]) -> bytes:
    """Return the value of x-features-missing, from reasons by input, cut after MAX_LISTED_NBYTES."""
    listed, nbytes = [], 0
    for name, reason in defaulted.items():
        part = f"{quote(name[:128])}={reason}"
        nbytes += len(part) + 2
        if nbytes > MAX_LISTED_NBYTES:
            listed.append("...")
            break
        listed.append(part)
    return ", ".join(listed).encode()


def list_rows(rows: Sequence[int]) -> bytes:
    """Return the value of x-unknown-rows or x-dropped-rows, from ascending numbers.

    Raises TooLarge if they are too many for a header; half a list would be a wrong one.
    """
    parts: list[str] = []
    at = 0
    while at < len(rows):
        last = at
        while last + 1 < len(rows) and rows[last + 1] == rows[last] + 1:
            last += 1
        parts.append(str(rows[at]) if last == at else f"{rows[at]}-{rows[last]}")
        at = last + 1
    text = ", ".join(parts).encode()
    if len(text) > MAX_ROWS_NBYTES:
        raise TooLarge(
            f"unknown keys: expected a list of rows of at most {MAX_ROWS_NBYTES} bytes, got {len(rows)} rows; send "
            "fewer rows at once"
        )
    return text


def request_id_of(headers: Headers) -> str:
    """Return x-request-id, truncated; "" if absent."""
    text = headers.get(REQUEST_ID)
    return "" if text is None else text[:MAX_REQUEST_ID_NBYTES].decode("latin-1")
