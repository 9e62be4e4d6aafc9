"""Content codings, JSON with NaN, timeouts and header numbers, shared by the codecs.

Checks run in this order: length of the body as sent, length after inflation, size of the parsed document, then parsing
(processor.features.limits).

A JSON document whose values do not fit in memory is refused before orjson parses it, because orjson creates objects
without a check: where the operating system refuses it memory (RLIMIT_DATA, RLIMIT_AS, strict overcommit), the process
dies of SIGSEGV. So as much address space as the document can take is asked for and given back first. No page of it is
touched: a document that fits costs two system calls.

Everything between giving the space back and the call of orjson holds the GIL, so two threads do not count on the same
space. A thread that computes without the GIL may still take it; what is asked for exceeds what documents were measured
to take by a fifth or more. Long documents are parsed in slices (serving.codecs.json_slices), between which the GIL is
given up, so each slice asks for its own space.
"""

from __future__ import annotations

import math
import mmap
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from freshet_serving.processor.errors import NO_MEMORY, BadInput, FreshetError, NotReady, TooLarge, json_kind
from freshet_serving.processor.features.limits import DEFAULTS, FREE_NBYTES, RequestLimits
from freshet_serving.processor.kernels.json_text import HOLDER, count_nodes, spell_out

MAX_TIMEOUT_S = 3600.0
# A compressed reply below this size takes no fewer packets.
MIN_DEFLATE_NBYTES = 1400
MAX_ACCEPT_NBYTES = 256
# Characters of a malformed document that an error message shows.
MAX_MET = 16
WHOLE_NBYTES = 1 << 17
"""JSON up to this length is parsed at once: a millisecond or two."""
UNCHECKED_NBYTES = 1 << 16
"""JSON up to this length is parsed without a check of memory: it takes at most 4 MiB."""

# orjson's first buffer takes 12 bytes for each byte of text, its objects at most 49 beyond that (`[[[[]]]],` again and
# again), measured with orjson 3.13 on documents of 4 MB.
MOST_PER_BYTE = 64
# By weight of count_nodes: a float with its slot in a list takes 32 bytes and weighs 1, a string 57 and weighs 2, an
# object with one name 197 and weighs 6. Strings take up to 4 bytes for each of their characters.
BUFFER_PER_BYTE, MOST_PER_NODE, TEXT_PER_BYTE = 12, 48, 4
# Digits of a whole number in a header.
MAX_DIGITS = 18
CONTENT_ENCODING = b"content-encoding"
IGNORED_INPUTS = b"x-ignored-inputs"
JSON_TYPE = (b"content-type", b"application/json")
MEMBERS, PIECE_NBYTES = 64, 1 << 16
"""Most members of a gzip stream, and the bytes that a later one is read by: each copies what follows its end."""
CODINGS = ((b"gzip", zlib.MAX_WBITS | 16), (b"deflate", zlib.MAX_WBITS))
VARY = (b"vary", b"accept-encoding")
SIGNATURE = "serving_default"
"""Name of the only signature of a model, for TensorFlow Serving's clients."""

Headers = Mapping[bytes, bytes]
"""Header values by lower-case name."""
Body = bytes | memoryview
"""A request's body.

A long body that arrived in pieces is a view of the buffer that they were assembled in (serving.http.request_body). The
buffer is never written again, so no copy is needed: copying 64 MB would block the event loop for 50 ms.
"""


class SizeLimit(NamedTuple):
    """Maximum length of a body; `what` is the name of what is limited and its unit, `advice` ends the error message."""

    nbytes: int
    what: tuple[str, str] = ("body", "bytes")
    advice: str = ""

    def check(self, nbytes: int, got: str = "") -> None:
        """Raise TooLarge if nbytes exceeds the limit; the message shows `got` instead of it, if given."""
        if nbytes > self.nbytes:
            name, counted = self.what
            raise TooLarge(f"{name}: expected at most {self.nbytes} {counted}, got {got or nbytes}{self.advice}")


BODY = SizeLimit(DEFAULTS.max_body_bytes)


def body_limit(limits: RequestLimits) -> SizeLimit:
    return SizeLimit(limits.max_body_bytes, advice=" (max_body_bytes)")


def json_limit(limits: RequestLimits) -> SizeLimit:
    if limits.max_body_bytes < limits.max_json_bytes:
        return body_limit(limits)
    advice = "; send tensors as bytes, or ask for fewer at once"
    return SizeLimit(limits.max_json_bytes, ("max_json_bytes", "bytes of JSON"), advice)


class UnsupportedEncoding(FreshetError):
    http_status = 415
    grpc_code = "INVALID_ARGUMENT"


def inflate(body: Body, headers: Headers, bound: SizeLimit = BODY, max_inflation: int = DEFAULTS.max_inflation) -> Body:
    """Return the body without its content coding: identity, gzip (one or more members) or deflate (a zlib stream).

    Args:
        bound: Size limit before and after inflation.
        max_inflation: Maximum ratio of inflated to sent length; inflating to FREE_NBYTES is always allowed.

    Raises:
        UnsupportedEncoding: Another content coding; BadInput and TooLarge as all codecs.
    """
    bound.check(len(body))
    coding = headers.get(CONTENT_ENCODING)
    if coding is None or coding == b"identity":
        return body
    codings = [name for part in coding.split(b",") if (name := part.strip().lower()) not in (b"", b"identity")]
    if not codings:
        return body
    # RFC 9110, 8.4.1.3: x-gzip is equivalent to gzip.
    coding = b"gzip" if codings == [b"x-gzip"] else b", ".join(codings)
    if coding not in (b"gzip", b"deflate"):
        raise UnsupportedEncoding(f"content-encoding: expected gzip or deflate, got {show(coding)}")
    bits = zlib.MAX_WBITS | 16 if coding == b"gzip" else zlib.MAX_WBITS
    stream = zlib.decompressobj(bits)
    most = min(bound.nbytes, max(max_inflation * len(body), FREE_NBYTES))
    try:
        # One byte beyond the limit distinguishes a body that is too large from one that just fits.
        parts = [stream.decompress(body, most + 1)]
        rest, room, members = memoryview(stream.unused_data), most + 1 - len(parts[0]), 1
        while coding == b"gzip" and stream.eof and rest and room and members < MEMBERS:
            stream, members = zlib.decompressobj(bits), members + 1
            while rest and room and not stream.eof:
                piece = rest[:PIECE_NBYTES]
                parts.append(stream.decompress(piece, room))
                rest, room = rest[len(piece) - len(stream.unused_data) :], room - len(parts[-1])
    except zlib.error:
        raise BadInput(f"body: not a valid {coding.decode()} stream") from None
    inflated = b"".join(parts) if len(parts) > 1 else parts[0]
    if len(inflated) > most:
        if most == bound.nbytes:
            bound.check(len(inflated), got="more after inflation")
        expected = f"expected at most {max_inflation} times the {len(body)} received bytes after inflation"
        raise TooLarge(f"max_inflation: {expected}, got more than {most}; compress less or send tensors as bytes")
    if not stream.eof or rest:
        raise BadInput(f"body: expected one complete {coding.decode()} stream")
    return inflated


def deflate(body: bytes, headers: Headers) -> tuple[bytes, Sequence[tuple[bytes, bytes]]]:
    """Compress a long reply with the best coding that the request accepts; return it and headers to add."""
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
    """Parse the body's JSON object; raise NotReady if there is not enough memory for it.

    NaN, Infinity and -Infinity are replaced by the numbers that json_columns turns back into them.
    """
    if not body:
        raise BadInput("JSON Parse error: The document is empty")
    json_limit(limits).check(len(body))
    # An empty list has the smallest ratio of bytes to nodes: two bytes.
    if HOLDER * len(body) > 2 * limits.max_nodes:
        nodes = int(count_nodes(np.frombuffer(body, np.uint8)))
        if nodes > limits.max_nodes:
            expected = f"expected at most {limits.max_nodes} values and names in JSON"
            raise TooLarge(f"max_nodes: {expected}, got {nodes}; send tensors as bytes, or ask for fewer at once")
    check_memory(body)
    try:
        document = _load(body)
    except ValueError:
        document = _load_refused(body)
    if type(document) is not dict:
        raise BadInput(f"JSON Value: expected an object, got {json_kind(document)}")
    return document


def _load(body: Body) -> Any:
    """Parse a document, a long one in slices; raise ValueError if it is refused."""
    if len(body) <= WHOLE_NBYTES:
        return orjson.loads(body)
    # Loaded with the first long document.
    from freshet_serving.serving.codecs.json_slices import load_in_slices

    return load_in_slices(body, _load_slice)


def _load_slice(text: bytes) -> Any:
    check_memory(text)
    return orjson.loads(text)


def check_memory(body: bytes | memoryview) -> None:
    """Raise NotReady if the operating system refuses as much memory as parsing a JSON text can take."""
    if len(body) <= UNCHECKED_NBYTES or _is_free(MOST_PER_BYTE * len(body)):
        return
    # Counted only here: the count takes a tenth of the time in which orjson parses.
    nodes = int(count_nodes(np.frombuffer(body, np.uint8)))
    if not _is_free(nbytes_of(nodes, len(body))):
        raise NotReady(NO_MEMORY)


def nbytes_of(nodes: int, length: int) -> int:
    """Return the most memory that parsing a document takes, in bytes, by its weight (count_nodes) and length."""
    return MOST_PER_NODE * nodes + (BUFFER_PER_BYTE + TEXT_PER_BYTE) * length


def _is_free(nbytes: int) -> bool:
    try:
        # Private, because RLIMIT_DATA counts no shared memory.
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True


def _load_refused(body: Body) -> Any:
    """Parse a document that was refused, after replacing NaN and Infinity by the numbers of kernels.json_text."""
    text = bytes(body)
    if b"NaN" in text or b"Infinity" in text:
        with suppress(ValueError):
            return _load(spell_out(text))
    # As a whole, so that the message tells the place in the document.
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:
            raise NotReady(NO_MEMORY) from None
        raise BadInput(f"JSON Parse error: {error.msg} at offset: {error.pos}{_shown_at_error(text, error)}") from None


def _shown_at_error(text: bytes, error: orjson.JSONDecodeError) -> str:
    shown = text.decode("utf-8", "replace")[error.pos : error.pos + MAX_MET]
    return f", got {shown!r}" if shown else ", got the end"


def dump_json(document: Any) -> bytes:
    """Return the document as JSON bytes.

    Arrays become nested lists: floats with their shortest digits, whole ones with '.0', NaN and Infinity as such.
    """
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY, default=_spell)


def json_values(array: NDArray[Any]) -> Any:
    """Return an array in a form for dump_json: unchanged, or a fragment if orjson would write its NaN as null.

    Strings, an array of objects, become lists.
    """
    if array.dtype.kind == "O":
        return array.tolist()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    return orjson.Fragment(_spell_nested(array.tolist(), array.dtype.type))


def json_number(value: np.float32) -> Any:
    return value if math.isfinite(value) else orjson.Fragment(_spell_nested(float(value), np.float32))


def _spell_nested(value: Any, kind: type[np.floating[Any]]) -> str:
    if type(value) is list:
        return "[" + ",".join([_spell_nested(element, kind) for element in value]) + "]"
    if math.isfinite(value):
        return orjson.dumps(kind(value), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _spell(value: Any) -> Any:
    # orjson accepts only contiguous arrays; a column of a wider matrix is not contiguous.
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    raise TypeError


def show(text: bytes | str) -> str:
    """Return a caller's text, truncated and quoted for a message."""
    return repr(text[:64].decode("latin-1") if isinstance(text, bytes) else text[:64])


def header_int(headers: Headers, name: bytes, largest: int) -> int | None:
    """Return a whole number from 0 to `largest` from a header, or None if the header is absent; raises BadInput."""
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isdigit() and len(text) <= MAX_DIGITS and int(text) <= largest):
        raise BadInput(f"{name.decode()}: expected a whole number from 0 to {largest}, got {show(text)}")
    return int(text)


def header_timeout_s(headers: Headers) -> float | None:
    """Return x-request-timeout-ms in seconds, or None if the header is absent. Raises BadInput."""
    text = headers.get(b"x-request-timeout-ms")
    if text is None:
        return None
    try:
        timeout_s = float(text) / 1000.0 if len(text) <= 16 else math.nan
    except ValueError:
        timeout_s = math.nan
    if not 0.0 < timeout_s <= MAX_TIMEOUT_S:
        expected = f"milliseconds above 0 and at most {MAX_TIMEOUT_S * 1000:.0f}"
        raise BadInput(f"x-request-timeout-ms: expected {expected}, got {show(text)}")
    return timeout_s
