"""Shared by the codecs: content codings, JSON with NaN, timeouts, numbers from headers.

Order of checks: length of the body as sent, length after inflation, what would be made of it, then parsing
(processor.features.limits). Everything raises processor.errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from freshet_serving.processor.errors import NO_MEMORY, BadInput, FreshetError, NotReady, TooLarge, json_kind
from freshet_serving.processor.features.limits import DEFAULTS, FREE_NBYTES, RequestLimits
from freshet_serving.processor.kernels.json_text import HOLDER, count_nodes, spell_out

MAX_TIMEOUT_S = 3600.0
# Below that a compressed reply is no shorter in packets.
MIN_DEFLATE_NBYTES = 1400
MAX_ACCEPT_NBYTES = 256
# Characters of a document that are shown where it is wrong.
MAX_MET = 16
# Of a whole number in a header.
MAX_DIGITS = 18
CONTENT_ENCODING = b"content-encoding"
CODINGS = ((b"gzip", zlib.MAX_WBITS | 16), (b"deflate", zlib.MAX_WBITS))
VARY = (b"vary", b"accept-encoding")
SIGNATURE = "serving_default"
"""The name of the one signature that a model has, for TensorFlow Serving's clients."""

Headers = Mapping[bytes, bytes]
"""Header values by lower-case name."""
Body = bytes | memoryview
"""A request's body. A long one that came in pieces is a view of what they were put together in
(serving.http.body_buffer), which nobody writes to: a copy of 64 MB would hold everybody up for 50 ms."""


class SizeLimit(NamedTuple):
    """How long a body may be. what: is so long, and what it is counted in; advice: to whoever sends more."""

    nbytes: int
    what: tuple[str, str] = ("body", "bytes")
    advice: str = ""

    def check(self, nbytes: int, got: str = "") -> None:
        """Raises TooLarge beyond it. got: in words, where that is not nbytes."""
        if nbytes > self.nbytes:
            name, counted = self.what
            raise TooLarge(f"{name}: at most {self.nbytes} {counted} wanted, got {got or nbytes}{self.advice}")


BODY = SizeLimit(DEFAULTS.max_body_bytes)


def body_limit(limits: RequestLimits) -> SizeLimit:
    """Of a request's body, whatever it holds."""
    return SizeLimit(limits.max_body_bytes, advice=" (max_body_bytes)")


def json_limit(limits: RequestLimits) -> SizeLimit:
    """Of a request's JSON."""
    if limits.max_body_bytes < limits.max_json_bytes:
        return body_limit(limits)
    advice = "; send tensors as bytes, or ask for fewer at once"
    return SizeLimit(limits.max_json_bytes, ("max_json_bytes", "bytes of JSON"), advice)


class UnsupportedEncoding(FreshetError):
    """A content coding that is not served."""

    http_status = 415
    grpc_code = "INVALID_ARGUMENT"


def inflate(
    body: Body,
    headers: Headers,
    bound: SizeLimit = BODY,
    max_inflation: int = DEFAULTS.max_inflation,
) -> Body:
    """The body without its content coding: identity, gzip or deflate (a zlib stream).

    Raises UnsupportedEncoding, BadInput for a broken stream, TooLarge beyond its bound before or after inflation, and
    beyond max_inflation times its length (and FREE_NBYTES) after it.
    """
    bound.check(len(body))
    coding = headers.get(CONTENT_ENCODING)
    if coding is None or coding == b"identity":
        return body
    coding = coding.strip().lower()
    if coding in (b"", b"identity"):
        return body
    if coding not in (b"gzip", b"deflate"):
        raise UnsupportedEncoding(f"content-encoding: gzip or deflate wanted, got {show(coding)}")
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16 if coding == b"gzip" else zlib.MAX_WBITS)
    most = min(bound.nbytes, max(max_inflation * len(body), FREE_NBYTES))
    try:
        # One byte past the limit tells a body that is too large from one that just fits.
        inflated = stream.decompress(body, most + 1)
    except zlib.error:
        raise BadInput(f"body: not a {coding.decode()} stream") from None
    if len(inflated) > most:
        if most == bound.nbytes:
            bound.check(len(inflated), got="more after inflation")
        wanted = f"at most {max_inflation} times the {len(body)} bytes that came wanted after inflation"
        raise TooLarge(f"max_inflation: {wanted}, got more than {most}; compress less, or send tensors as bytes")
    if not stream.eof or stream.unused_data:
        raise BadInput(f"body: one whole {coding.decode()} stream wanted")
    return inflated


def deflate(body: bytes, headers: Headers) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """The body under the best coding that the request accepts, and the headers that say so; as it is when it is short,
    or none of ours is accepted."""
    if len(body) < MIN_DEFLATE_NBYTES:
        return body, ()
    accepted = {}
    for part in headers.get(b"accept-encoding", b"")[:MAX_ACCEPT_NBYTES].lower().split(b","):
        coding, _, quality = part.partition(b";")
        accepted[coding.strip()] = quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    for coding, bits in CODINGS:
        if accepted.get(coding):
            stream = zlib.compressobj(1, zlib.DEFLATED, bits)
            return stream.compress(body) + stream.flush(), ((CONTENT_ENCODING, coding), VARY)
    return body, ()


def load_json(body: Body, limits: RequestLimits = DEFAULTS) -> dict[str, Any]:
    """The body's JSON object; what stands in it for NaN, Infinity and -Infinity, json_columns knows. Raises BadInput,
    TooLarge."""
    if not body:
        raise BadInput("JSON Parse error: The document is empty")
    json_limit(limits).check(len(body))
    # A list of nothing is the shortest of its weight: two bytes.
    if HOLDER * len(body) > 2 * limits.max_nodes:
        nodes = int(count_nodes(np.frombuffer(body, np.uint8)))
        if nodes > limits.max_nodes:
            wanted = f"at most {limits.max_nodes} values and names in JSON wanted"
            raise TooLarge(f"max_nodes: {wanted}, got {nodes}; send tensors as bytes, or ask for fewer at once")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        document = _load_with_nan(body, error)
    if type(document) is not dict:
        raise BadInput(f"JSON Value: an object wanted, got {json_kind(document)}")
    return document


def _load_with_nan(body: Body, first: orjson.JSONDecodeError) -> Any:
    """A document that orjson has refused, with the numbers of kernels.json_text in the place of NaN and Infinity."""
    if "memory" in first.msg:
        raise NotReady(NO_MEMORY) from None
    text = bytes(body)
    try:
        if b"NaN" in text or b"Infinity" in text:
            return orjson.loads(spell_out(text))
    except orjson.JSONDecodeError:
        pass
    raise BadInput(f"JSON Parse error: {first.msg} at offset: {first.pos}{_met(text, first)}") from None


def _met(text: bytes, error: orjson.JSONDecodeError) -> str:
    """What stands where a document could not be read on; `pos` counts characters."""
    found = text.decode("utf-8", "replace")[error.pos : error.pos + MAX_MET]
    return f", got {found!r}" if found else ", got the end"


def dump_json(document: Any) -> bytes:
    """JSON bytes. Arrays as nested lists: floats with shortest digits, whole ones with '.0', NaN and Infinity as
    such."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY, default=_spell)


def json_numbers(array: NDArray[Any]) -> Any:
    """An array as dump_json takes it: itself, or a fragment when orjson would write its NaN as null."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    return orjson.Fragment(_spell_nested(array.tolist(), array.dtype.type))


def json_number(value: np.float32) -> Any:
    """One number as dump_json takes it."""
    return value if math.isfinite(value) else orjson.Fragment(_spell_nested(float(value), np.float32))


def _spell_nested(value: Any, kind: type[np.floating[Any]]) -> str:
    if type(value) is list:
        return "[" + ",".join([_spell_nested(each, kind) for each in value]) + "]"
    if math.isfinite(value):
        return orjson.dumps(kind(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _spell(value: Any) -> Any:
    # orjson takes contiguous arrays only; a column of a wider matrix is not one.
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    raise TypeError


def show(text: bytes | str) -> str:
    """A caller's text, cut and quoted for a message."""
    return repr(text[:64].decode("latin-1") if isinstance(text, bytes) else text[:64])


def header_int(headers: Headers, name: bytes, largest: int) -> int | None:
    """A whole number from 0 to `largest`, or None when the header is absent; raises BadInput."""
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isdigit() and len(text) <= MAX_DIGITS and int(text) <= largest):
        raise BadInput(f"{name.decode()}: a whole number from 0 to {largest} wanted, got {show(text)}")
    return int(text)


def header_timeout_s(headers: Headers) -> float | None:
    """x-request-timeout-ms as seconds, or None when the header is absent; raises BadInput."""
    text = headers.get(b"x-request-timeout-ms")
    if text is None:
        return None
    try:
        timeout_s = float(text) / 1000.0 if len(text) <= 16 else math.nan
    except ValueError:
        timeout_s = math.nan
    if not 0.0 < timeout_s <= MAX_TIMEOUT_S:
        wanted = f"milliseconds above 0 and at most {MAX_TIMEOUT_S * 1000:.0f}"
        raise BadInput(f"x-request-timeout-ms: {wanted} wanted, got {show(text)}")
    return timeout_s
