"""Decode a predict request in DeepRec's messages over HTTP, and encode its reply: a dialect (serving.http.dialects)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from freshet_serving.processor.columns import Column
from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.extensions.deeprec import codec
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package import Manifest, ranks_items
from freshet_serving.serving.codecs.wire import Body, Headers, header_timeout_s
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.http.asgi import RawHeaders

PROTOBUF_TYPE = (b"content-type", b"application/x-protobuf")


class DeepRecOptions(NamedTuple):
    """Options of a request in DeepRec's messages.

    Attributes:
        outputs: Names of the requested outputs; empty for all.
        whole: Whether outputs of whole numbers are sent as such: ids are no floats.
    """

    outputs: tuple[str, ...]
    timeout_s: float | None
    whole: bool = False


def decode(
    body: Body, headers: Headers, manifest: Manifest, limits: RequestLimits, regions: Regions | None
) -> tuple[Mapping[str, Column], DeepRecOptions]:
    """Return the inputs of a body and its options; arguments and errors as Dialect.decode."""
    inputs, outputs = codec.decode(body, manifest, limits)
    return inputs, DeepRecOptions(
        outputs, header_timeout_s(headers), ranks_items(manifest) or any(o.exact for o in manifest.outputs)
    )


def encode(reply: PredictReply, options: DeepRecOptions, regions: Regions | None) -> tuple[bytes, RawHeaders]:
    """Return the body and headers of a reply; arguments as Dialect.encode."""
    return codec.encode(reply.outputs, options.outputs, options.whole), (PROTOBUF_TYPE,)
