"""tritonclient.grpc, synchronous, callbacks, streams and asyncio: every call that Freshet serves."""

import asyncio
import queue
import warnings

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, shared_memory

from tests.e2e.clients.probe import check, read, refusal

warnings.simplefilter("ignore")


def inputs(probe):
    arrays = {
        "user": (probe.user, "INT64"),
        "tags": (probe.tag_values, "BYTES"),
        "tags.row_splits": (probe.tag_splits, "INT64"),
        "floats": (probe.floats, "FP32"),
    }
    made = []
    for name, (array, datatype) in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def describe(client, probe):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert client.is_model_ready("small", "1")
    assert not client.is_model_ready("small", "9")
    assert not client.is_model_ready("other")
    assert set(client.get_server_metadata().extensions) == {
        *("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"),
        *(["system_shared_memory"] if probe.shared_memory else []),
    }
    metadata = client.get_model_metadata("small")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("user", "INT64", [-1]),
        ("tags", "BYTES", [-1]),
        ("tags.row_splits", "INT64", [-1]),
        ("floats", "FP32", [-1, 4]),
    ]
    config = client.get_model_config("small", as_json=True)["config"]
    assert config["output"] == [{"name": "score", "data_type": "TYPE_FP32", "dims": ["-1", "1"]}]
    index = client.get_model_repository_index()
    assert [(m.name, m.version, m.state) for m in index.models] == [("small", "1", "READY")]
    for unserved in (client.get_trace_settings, client.get_log_settings, client.get_cuda_shared_memory_status):
        error = refusal(InferenceServerException, unserved)
        assert error.status() == "StatusCode.UNIMPLEMENTED", error.status()


def predict(client, probe):
    for coding in (None, "gzip", "deflate"):
        for wanted in (None, [triton.InferRequestedOutput("score")]):
            result = client.infer("small", inputs(probe), outputs=wanted, compression_algorithm=coding)
            check(probe, result.as_numpy("score"))
    result = client.infer(
        "small", inputs(probe), model_version="1", request_id="q7", priority=1, timeout=5_000_000, client_timeout=9.0,
        parameters={"note": "mine"},
    )  # fmt: skip
    check(probe, result.as_numpy("score"))
    reply = result.get_response()
    assert (reply.id, reply.model_name, reply.model_version) == ("q7", "small", "1")
    replies = queue.Queue()
    for _ in range(8):
        client.async_infer("small", inputs(probe), lambda result, error: replies.put((result, error)))
    for _ in range(8):
        result, error = replies.get(timeout=30)
        assert error is None, error
        check(probe, result.as_numpy("score"))


def trail(probe):
    """The generation comes as trailing metadata."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="small")
    for tensor in inputs(probe):
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    with grpc.insecure_channel(probe.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        _, call = stub.ModelInfer.with_call(request, timeout=30)
        assert ("x-model-generation", probe.generation) in call.trailing_metadata()
        assert ("x-model-version", probe.generation.split(".")[0]) in call.trailing_metadata()


def refuse(client, probe):
    def error(**changes):
        return refusal(
            InferenceServerException, client.infer, **{"model_name": "small", "inputs": inputs(probe), **changes}
        )

    assert error(model_name="other").status() == "StatusCode.NOT_FOUND"
    assert error(model_version="9").status() == "StatusCode.NOT_FOUND"
    assert error(model_version="newest").status() == "StatusCode.INVALID_ARGUMENT"
    missing = error(inputs=inputs(probe)[:3])
    assert missing.status() == "StatusCode.INVALID_ARGUMENT"
    assert "floats is missing" in missing.message()


def stream(client, probe):
    replies = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    for number in range(20):
        client.async_stream_infer("small" if number != 7 else "other", inputs(probe), request_id=str(number))
    for number in range(20):
        result, error = replies.get(timeout=30)
        if number == 7:
            assert result is None
            assert "not in the repository" in error.message()
        else:
            assert error is None, error
            assert result.get_response().id == str(number)
            check(probe, result.as_numpy("score"))
            assert "triton_final_response" not in result.get_response().parameters
    client.async_stream_infer("small", inputs(probe), enable_empty_final_response=True)
    result, error = replies.get(timeout=30)
    assert error is None, error
    assert result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()
    client.start_stream(lambda result, error: replies.put((result, error)), headers={"triton_grpc_error": "true"})
    client.async_stream_infer("other", inputs(probe))
    _, error = replies.get(timeout=30)
    assert error.status() == "StatusCode.NOT_FOUND", error
    client.stop_stream()


def shared(client, probe):
    floats, score = probe.floats.nbytes, probe.scores.nbytes
    given = shared_memory.create_shared_memory_region("floats", "/freshet_test_grpc_in", floats)
    taken = shared_memory.create_shared_memory_region("score", "/freshet_test_grpc_out", score)
    try:
        shared_memory.set_shared_memory_region(given, [probe.floats])
        client.register_system_shared_memory("floats", "/freshet_test_grpc_in", floats)
        client.register_system_shared_memory("score", "/freshet_test_grpc_out", score)
        assert set(client.get_system_shared_memory_status().regions) == {"floats", "score"}
        *others, tensor = inputs(probe)
        tensor.set_shared_memory("floats", floats)
        wanted = triton.InferRequestedOutput("score")
        wanted.set_shared_memory("score", score)
        result = client.infer("small", [*others, tensor], outputs=[wanted])
        assert result.get_output("score").parameters["shared_memory_region"].string_param == "score"
        check(probe, shared_memory.get_contents_as_numpy(taken, np.float32, [len(probe.scores)]))
        client.unregister_system_shared_memory("floats")
        error = refusal(InferenceServerException, client.infer, "small", [*others, tensor])
        assert "not registered" in error.message()
        client.unregister_system_shared_memory()
        error = refusal(InferenceServerException, client.register_system_shared_memory, "x", "/../etc/passwd", 8)
        assert error.status() == "StatusCode.INVALID_ARGUMENT"
    finally:
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)


def manage(client, probe):
    client.unload_model("small")
    assert not client.is_model_ready("small")
    client.load_model("small")
    check(probe, client.infer("small", inputs(probe)).as_numpy("score"))
    assert refusal(InferenceServerException, client.load_model, "other").status() == "StatusCode.NOT_FOUND"


def count(client):
    (entry,) = client.get_inference_statistics("small").model_stats
    assert entry.inference_stats.success.count > 10
    assert entry.inference_stats.success.ns > 0
    assert entry.inference_count > entry.inference_stats.success.count


async def concurrently(probe):
    import tritonclient.grpc.aio as aio

    async with aio.InferenceServerClient(probe.grpc) as client:
        assert await client.is_model_ready("small")
        results = await asyncio.gather(*[client.infer("small", inputs(probe)) for _ in range(16)])
        for result in results:
            check(probe, result.as_numpy("score"))

        async def requests():
            for number in range(5):
                yield {"model_name": "small", "inputs": inputs(probe), "request_id": str(number)}

        seen = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            check(probe, result.as_numpy("score"))
            seen.append(result.get_response().id)
        assert seen == ["0", "1", "2", "3", "4"]


def main():
    probe = read()
    with triton.InferenceServerClient(probe.grpc) as client:
        describe(client, probe)
        predict(client, probe)
        refuse(client, probe)
        stream(client, probe)
        if probe.shared_memory:
            shared(client, probe)
        manage(client, probe)
        count(client)
    trail(probe)
    asyncio.run(concurrently(probe))
    print("done")


if __name__ == "__main__":
    main()
