"""Serve tensorflow.serving.PredictionService and ModelService."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import ParseDict

from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.package import Manifest
from freshet_serving.serving.codecs import examples, tfs_rpc
from freshet_serving.serving.codecs.messages import POOL, message
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.codecs.wire import SIGNATURE, show
from freshet_serving.serving.front import catalog, queries
from freshet_serving.serving.front.exchange import DecodedRequest
from freshet_serving.serving.front.model_control import MAX_MODELS, ControlHandler, Document, ModelControlAuthorizer
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.rpc.handlers import (
    Answer,
    HandlerFactory,
    Handlers,
    RpcExchange,
    generation_metadata,
    headers_of,
    parse,
)

if TYPE_CHECKING:
    from freshet_serving.processor.sessions.predictor import Predictor

PACKAGE = "tensorflow.serving."
# Each task gets a reply for every row.
MAX_TASKS = 64
METHODS = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}


class TensorFlowServing:
    def __init__(
        self,
        lifecycle: Availability[Predictor],
        handlers_of: Callable[[str], HandlerFactory],
        control: ControlHandler,
        authorizer: ModelControlAuthorizer,
    ) -> None:
        self._lifecycle, self._control, self._authorizer = lifecycle, control, authorizer
        self._templates: Templates[tfs_rpc.PredictParams] = Templates()
        calls = handlers_of("tfs_grpc")
        self.services: dict[str, Handlers] = {
            f"{PACKAGE}PredictionService": {
                "Predict": calls.raw("Predict", self._predict),
                "Classify": calls.raw("Classify", partial(self._examples, "Classification", _classify)),
                "Regress": calls.raw("Regress", partial(self._examples, "Regression", _regress)),
                "MultiInference": calls.raw("MultiInference", self._multi_inference),
                "GetModelMetadata": calls.unary(
                    "GetModelMetadata", f"{PACKAGE}GetModelMetadataRequest", self._metadata
                ),
            },
            f"{PACKAGE}ModelService": {
                "GetModelStatus": calls.unary("GetModelStatus", f"{PACKAGE}GetModelStatusRequest", self._status),
                "HandleReloadConfigRequest": calls.unary(
                    "HandleReloadConfigRequest", f"{PACKAGE}ReloadConfigRequest", self._reload
                ),
            },
        }

    async def _predict(self, data: bytes, exchange: RpcExchange) -> Answer:
        open_ = partial(tfs_rpc.PredictDecoder, data, self._templates, exchange.shared.options)
        predict = await exchange.opened(data, open_, self._templates)
        result = await exchange.predict(
            predict.params, lambda manifest, limits: (predict.columns(manifest, limits), None), servable=True
        )
        outputs = exchange.declared(result, predict.params.signature, predict.params.outputs).outputs
        reply = tfs_rpc.encode(outputs, predict.params, result.generation.version, predict.scalar, predict.flat)
        return reply, exchange.trailing_metadata(result)

    async def _examples(
        self, kind: str, fill: Callable[[PredictReply, Any], None], data: bytes, exchange: RpcExchange
    ) -> Answer:
        """Classify or regress: `fill` puts what was computed into the reply's result."""
        request = await self._opened(exchange, f"{kind}Request", data)
        reply = message(f"{PACKAGE}{kind}Response")()
        result = await self._infer([request.model_spec], request.input, exchange)
        fill(exchange.declared(result, request.model_spec.signature_name), reply.result)
        self._set_spec(reply.model_spec, request.model_spec, result)
        return reply.SerializeToString(), exchange.trailing_metadata(result)

    async def _multi_inference(self, data: bytes, exchange: RpcExchange) -> Answer:
        """Answer all tasks from one prediction: they must name the same model; each may name another signature."""
        request = await self._opened(exchange, "MultiInferenceRequest", data)
        if not request.tasks:
            raise BadInput("Inference tasks must be non-empty")
        if len(request.tasks) > MAX_TASKS:
            raise TooLarge(f"tasks: expected at most {MAX_TASKS}, got {len(request.tasks)}")
        first, seen = tfs_rpc.predict_params(request.tasks[0].model_spec), set()
        for task in request.tasks:
            if task.method_name not in METHODS:
                raise BadInput(f"Unsupported signature method_name: {show(task.method_name)}")
            params = tfs_rpc.predict_params(task.model_spec)
            if params._replace(signature="") != first._replace(signature=""):
                raise BadInput("All ModelSpecs in a MultiInferenceRequest must access the same model name and version.")
            # A task of a few bytes would get a reply of every row again.
            if (key := (task.method_name, params.signature or SIGNATURE)) in seen:
                raise BadInput(f"Duplicate evaluation of signature: {show(key[1])}")
            seen.add(key)
        result = await self._infer([task.model_spec for task in request.tasks], request.input, exchange)
        reply = message(f"{PACKAGE}MultiInferenceResponse")()
        for task in request.tasks:
            answered = reply.results.add()
            self._set_spec(answered.model_spec, task.model_spec, result)
            declared = exchange.declared(result, task.model_spec.signature_name)
            if METHODS[task.method_name] == "classify":
                _classify(declared, answered.classification_result)
            else:
                _regress(declared, answered.regression_result)
        return reply.SerializeToString(), exchange.trailing_metadata(result)

    async def _opened(self, exchange: RpcExchange, kind: str, data: bytes) -> Any:
        return await exchange.opened(data, partial(parse, f"{PACKAGE}{kind}", data, exchange.shared.options))

    async def _infer(self, specs: Sequence[Any], source: Any, exchange: RpcExchange) -> PredictReply:
        """Predict from examples once, for every ModelSpec: they name one model, and each a signature of it."""
        _check_name(specs[0])

        def read(manifest: Manifest, limits: RequestLimits) -> DecodedRequest:
            for spec in specs:
                manifest.replies(spec.signature_name)
            extent = RequestSize(limits)
            return examples.columns(*examples.of_message(source, extent), manifest, extent), None

        return await exchange.predict(tfs_rpc.predict_params(specs[0]), read, servable=True)

    def _set_spec(self, spec: Any, params: Any, result: PredictReply) -> None:
        tfs_rpc.set_spec(spec, result.model, result.generation.version, params.signature_name or SIGNATURE)

    async def _metadata(self, request: Any, context: Any) -> Any:
        _check_name(request.model_spec)
        if not request.metadata_field:
            raise BadInput("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise BadInput(f"Metadata field {show(field)} is not supported")
        params = tfs_rpc.predict_params(request.model_spec)
        manifest, generation = queries.servable_manifest(self._lifecycle.processor(), params)
        reply = message(f"{PACKAGE}GetModelMetadataResponse")()
        reply.model_spec.name, reply.model_spec.version.value = params.model, generation.version
        signatures = ParseDict(catalog.signatures(manifest), message(f"{PACKAGE}SignatureDefMap")())
        reply.metadata["signature_def"].Pack(signatures)
        context.set_trailing_metadata(generation_metadata(generation))
        return reply

    async def _status(self, request: Any, context: Any) -> Any:
        if not request.HasField("model_spec"):
            raise BadInput("Missing ModelSpec")
        statuses = queries.servable_status(self._lifecycle.processor(), tfs_rpc.predict_params(request.model_spec))
        document = catalog.version_status(statuses)
        return ParseDict(document, message(f"{PACKAGE}GetModelStatusResponse")(), descriptor_pool=POOL)

    async def _reload(self, request: Any, context: Any) -> Any:
        """Apply a new configuration; as in TensorFlow Serving, an error after parsing is in the call's status."""
        self._authorizer.authorize(headers_of(context).get(b"authorization"))
        which = request.config.WhichOneof("config")
        if which != "model_config_list":
            raise BadInput("ServerCore: expected a model_config_list as the config of a ModelServerConfig")
        configs = request.config.model_config_list.config
        if len(configs) > MAX_MODELS:
            raise BadInput(f"model_config_list: expected at most {MAX_MODELS} models, got {len(configs)}")
        self._lifecycle.processor()
        await in_thread(None, partial(self._control, "reload", {"models": [_config(c) for c in configs]}))
        reply = message(f"{PACKAGE}ReloadConfigResponse")()
        reply.status.error_code = 0
        return reply


def _check_name(spec: Any) -> None:
    if not spec.name:
        raise BadInput("Missing ModelSpec")


def _config(config: Any) -> Document:
    policy = config.model_version_policy
    which = policy.WhichOneof("policy_choice") or "latest"
    return {
        "name": config.name,
        "base_path": config.base_path,
        "policy": which,
        "count": max(1, policy.latest.num_versions) if which == "latest" else 0,
        "versions": list(policy.specific.versions) if which == "specific" else [],
        "labels": dict(config.version_labels),
    }


def _classify(result: PredictReply, into: Any) -> None:
    for labels, scores in zip(*examples.classes(result.outputs)):
        classes = into.classifications.add().classes
        for label, score in zip(labels, scores):
            classes.add(label=label, score=score)


def _regress(result: PredictReply, into: Any) -> None:
    for value in examples.regressions(result.outputs):
        into.regressions.add(value=value)
