"""Headers of requests, what each says beside its body: headers over HTTP, metadata over gRPC, of the same meaning.

x-caller-id     who asks, for the policy "mod" of a session group
x-sticky-key    requests of one key are answered by one version of a split (processor.versions.traffic)
x-model-digest  asks for the digest of the generation that answers, which comes back under the same name
x-request-id    comes back with the reply, and stands in logs, traces and recordings
traceparent     W3C trace context (serving.telemetry.tracing)

And of replies: x-ignored-inputs names inputs that were sent and that the model does not have, where TensorFlow Serving
passes over them.
"""

from __future__ import annotations

from zlib import crc32

from freshet_serving.serving.codecs.wire import Headers

CALLER_ID, STICKY_KEY, REQUEST_ID, TRACEPARENT = b"x-caller-id", b"x-sticky-key", b"x-request-id", b"traceparent"
MODEL_DIGEST, IGNORED_INPUTS = b"x-model-digest", b"x-ignored-inputs"
MAX_REQUEST_ID_NBYTES = 128
TIMED_EVERY = 16
"""Of how many requests one has the time noted that it takes to read and to print."""


def caller_of(headers: Headers) -> int | None:
    """x-caller-id as a number, the same in every process, or None."""
    text = headers.get(CALLER_ID)
    return None if text is None else crc32(text)


def request_id_of(headers: Headers) -> str:
    """x-request-id, cut, or ""."""
    text = headers.get(REQUEST_ID)
    return "" if text is None else text[:MAX_REQUEST_ID_NBYTES].decode("latin-1")
