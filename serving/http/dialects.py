"""Define the dialects of a predict request over HTTP: path, decoder and encoder of each.

Routes (serving.http.paths), the routes served below ASGI (serving.http.protocol), OpenAPI (serving.http.openapi) and
metrics are made from DIALECTS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from freshet_serving.processor.columns import Column
from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import missing
from freshet_serving.serving.codecs import kserve, tfs_rest
from freshet_serving.serving.codecs.wire import JSON_TYPE, Body, Headers, SizeLimit, body_limit, json_limit
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.http.asgi import RawHeaders
from freshet_serving.serving.http.schemas import BINARY, Schema, json_of, named
from freshet_serving.serving.ports import SERVER


class Dialect(NamedTuple):
    """The form in which one kind of client sends predict requests.

    Attributes:
        name: Action of its routes, and the last word of their paths.
        protocol: Its name in metrics.
        servable: True for TensorFlow Serving's paths, /v1/models/{model}:name; False for KServe's,
            /v2/models/{model}/name.
        body: Request schemas by media type, for OpenAPI.
        reply: Reply schemas by media type, for OpenAPI.
        decode: (body, headers, manifest, limits, regions) -> the inputs, and options with a timeout_s; raises BadInput,
            TooLarge.
        encode: (reply, options, regions) -> body and headers; raises BadInput.
        parsed: (nbytes, headers) -> how many bytes of a body of this size decode() parses.
        validate_prefix: (text, manifest, limits): raises decode()'s errors from the part of a body that it parses,
            before the rest has arrived.
        bound: (headers, limits) -> size limit of the body, as sent and inflated; raises BadInput, TooLarge.
        signature: The signature that options name; "" for the default one.
        asked: The outputs that options name, () for all; None for a dialect that cannot name any.
        model_of: (body, limits) -> the model that a body names, of dialects that have a path without a model; raises
            BadInput.
    """

    name: str
    protocol: str
    servable: bool
    summary: str
    body: dict[str, Schema]
    reply: dict[str, Schema]
    decode: Callable[[Body, Headers, Manifest, RequestLimits, Regions | None], tuple[Mapping[str, Column], Any]]
    encode: Callable[[PredictReply, Any, Regions | None], tuple[bytes, RawHeaders]]
    parsed: Callable[[int, Headers], int] = lambda nbytes, headers: nbytes
    validate_prefix: Callable[[bytes, Manifest, RequestLimits], None] | None = None
    bound: Callable[[Headers, RequestLimits], SizeLimit] = lambda headers, limits: json_limit(limits)
    signature: Callable[[Any], str] = lambda options: ""
    asked: Callable[[Any], Collection[str]] | None = None
    model_of: Callable[[Body, RequestLimits], str] | None = None

    @property
    def suffix(self) -> str:
        """The end of its paths, after the model's."""
        return f":{self.name}" if self.servable else f"/{self.name}"


def _examples(method: str) -> Dialect:
    return Dialect(
        method,
        "tfs_rest",
        True,
        "Predict from tf.Example",
        json_of(named("ExamplesRequest")),
        json_of(named("ResultsReply")),
        lambda body, headers, manifest, limits, regions: tfs_rest.decode_examples(
            body, headers, manifest, method, limits
        ),
        lambda reply, options, regions: (tfs_rest.encode_results(reply.outputs, options), (JSON_TYPE,)),
        signature=attrgetter("signature"),
    )


def extension_codec(dialect: str, extension: str, functions: int = 2) -> tuple[Callable[..., Any], ...]:
    """Return the functions of a dialect that an extension has, decode() first; without it all raise its error."""
    make = SERVER.get("dialects", dialect)
    if make is not None:
        codec: tuple[Callable[..., Any], ...] = make()
        return codec

    def refuse(*_: object) -> Any:
        raise missing(f":{dialect}", extension)

    return (refuse,) * functions


def _processor() -> Dialect:
    decode, encode = extension_codec("processor", "deeprec")
    return Dialect(
        "processor",
        "processor",
        True,
        "Predict, with DeepRec's messages",
        {"application/x-protobuf": BINARY},
        {"application/x-protobuf": BINARY},
        decode,
        encode,
        bound=lambda headers, limits: body_limit(limits),
    )


def _rerank() -> Dialect:
    decode, encode, model_of = extension_codec("rerank", "rerank", 3)
    return Dialect(
        "rerank",
        "rerank",
        True,
        "Order item ids for a user, in the form of rerankers",
        json_of(named("RerankRequest")),
        json_of(named("RerankReply")),
        decode,
        encode,
        model_of=model_of,
    )


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "predict",
            "tfs_rest",
            True,
            "Predict, with TensorFlow Serving's REST API",
            json_of(named("PredictRequest")),
            json_of(named("PredictReply")),
            tfs_rest.decode,
            tfs_rest.encode_reply,
            signature=attrgetter("signature"),
        ),
        _examples("classify"),
        _examples("regress"),
        _processor(),
        _rerank(),
        Dialect(
            "infer",
            "kserve",
            False,
            "Predict, with the KServe v2 protocol",
            json_of(named("InferRequest")) | {"application/octet-stream": BINARY},
            json_of(named("InferReply")) | {"application/octet-stream": BINARY},
            kserve.decode,
            lambda reply, options, regions: kserve.encode(
                reply.outputs, options, reply.model, reply.generation.version, regions
            ),
            kserve.parsed_nbytes,
            kserve.validate_prefix,
            kserve.body_limit,
            asked=lambda options: [output.name for output in options.outputs],
        ),
    )
}
"""All dialects, by name."""
