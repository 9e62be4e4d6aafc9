"""The dialects of a predict request over HTTP: how each is read, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from processor.columns import Column
from processor.eas import codec as eas
from processor.engine import PredictReply
from processor.package.manifest import Manifest
from serving.codecs import kserve, tfs_rest
from serving.codecs.wire import Headers, header_timeout_s
from serving.front.shared_memory import Regions
from serving.http.asgi import JSON_TYPE, RawHeaders

PROTOBUF_TYPE = (b"content-type", b"application/x-protobuf")


class Dialect(NamedTuple):
    """protocol: its name in metrics. decode(body, headers, manifest, regions): the inputs, and options with a
    timeout_s; encode(reply, options, regions): body and headers. Both raise BadInput."""

    protocol: str
    decode: Callable[[bytes, Headers, Manifest, Regions | None], tuple[Mapping[str, Column], Any]]
    encode: Callable[[PredictReply, Any, Regions | None], tuple[bytes, RawHeaders]]


class ProcessorOptions(NamedTuple):
    """outputs: those wanted; none for all."""

    outputs: tuple[str, ...]
    timeout_s: float | None


def _examples(method: str) -> Dialect:
    return Dialect(
        "tfs_rest",
        lambda body, headers, manifest, regions: tfs_rest.decode_examples(body, headers, manifest, method),
        lambda reply, options, regions: (tfs_rest.encode_results(reply.outputs, options), (JSON_TYPE,)),
    )


def _decode_processor(
    body: bytes, headers: Headers, manifest: Manifest, regions: Regions | None
) -> tuple[Mapping[str, Column], ProcessorOptions]:
    inputs, outputs = eas.decode(body, manifest)
    return inputs, ProcessorOptions(outputs, header_timeout_s(headers))


def _decode_kserve(
    body: bytes, headers: Headers, manifest: Manifest, regions: Regions | None
) -> tuple[Mapping[str, Column], kserve.Options]:
    return kserve.decode(body, headers, manifest, regions.read if regions is not None else None)


def _encode_kserve(reply: PredictReply, options: kserve.Options, regions: Regions | None) -> tuple[bytes, RawHeaders]:
    write = regions.write if regions is not None else None
    return kserve.encode(reply.outputs, options, reply.model, reply.generation.version, write)


DIALECTS = {
    "predict": Dialect(
        "tfs_rest",
        lambda body, headers, manifest, regions: tfs_rest.decode(body, headers, manifest),
        lambda reply, options, regions: (tfs_rest.encode(reply.outputs, options), (JSON_TYPE,)),
    ),
    "classify": _examples("classify"),
    "regress": _examples("regress"),
    "processor": Dialect(
        "processor",
        _decode_processor,
        lambda reply, options, regions: (eas.encode(reply.outputs, options.outputs), (PROTOBUF_TYPE,)),
    ),
    "infer": Dialect("kserve", _decode_kserve, _encode_kserve),
}
"""By the route's action."""
