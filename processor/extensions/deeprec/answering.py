"""Answer the bytes of DeepRec's PredictRequest with a Processor of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.deeprec import codec
from freshet_serving.processor.package import joined
from freshet_serving.processor.sessions.request import PredictRequest

if TYPE_CHECKING:
    from freshet_serving.processor.engine import Processor


def answer(processor: Processor, request: bytes, model: str | None) -> bytes:
    """Return the bytes of a PredictResponse, of the only model if none is named."""
    predictor = processor.predictor
    name = _only(processor.host.models()) if model is None else model
    limits = predictor.limits(name)
    if len(request) > limits.max_body_bytes:
        most = f"expected at most {limits.max_body_bytes} bytes"
        raise TooLarge(f"max_body_bytes: {most}, got {len(request)}; ask for fewer at once")
    manifest = predictor.manifest(name)[0]
    inputs, outputs = codec.decode(request, manifest, limits)
    reply = predictor.process(PredictRequest(name, inputs))
    if reply.dropped_rows:
        raise BadInput(f"model {name!r} drops rows of unknown keys, which DeepRec's replies cannot name: use mark")
    exact = any(o.exact for o in manifest.outputs)
    arrays = {
        sent: joined(reply.outputs[o.name]) if o.exact else reply.outputs[o.name]
        for sent, o in manifest.replies().items()
    }
    return codec.encode(arrays, outputs, exact)


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise BadInput(f"model: expected one of {', '.join(names) or 'none'}, got nothing")
    return names[0]
