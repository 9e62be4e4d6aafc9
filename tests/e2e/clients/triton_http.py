"""tritonclient.http, synchronous and asyncio: every call that Freshet serves."""

import asyncio
import warnings

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, shared_memory

from tests.e2e.clients.probe import check, read, refusal

warnings.simplefilter("ignore")


def inputs(probe, kind=triton, binary=True):
    arrays = {
        "user": (probe.user, "INT64"),
        "tags": (probe.tag_values, "BYTES"),
        "tags.row_splits": (probe.tag_splits, "INT64"),
        "floats": (probe.floats, "FP32"),
    }
    made = []
    for name, (array, datatype) in arrays.items():
        tensor = kind.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        made.append(tensor)
    return made


def describe(client, probe):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert client.is_model_ready("small", "1")
    assert not client.is_model_ready("other")
    about = client.get_server_metadata()
    assert about["name"] == "freshet"
    assert set(about["extensions"]) == {
        *("binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"),
        *(["system_shared_memory"] if probe.shared_memory else []),
    }
    metadata = client.get_model_metadata("small")
    assert [t["name"] for t in metadata["inputs"]] == ["user", "tags", "tags.row_splits", "floats"]
    assert metadata["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1, 1]}]
    config = client.get_model_config("small", "1")
    assert config["max_batch_size"] == 0
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert {"name": "small", "version": "1", "state": "READY", "reason": ""} in client.get_model_repository_index()


def predict(client, probe):
    for coding in (None, "gzip", "deflate"):
        for answer in (None, "gzip", "deflate"):
            result = client.infer(
                "small", inputs(probe), request_compression_algorithm=coding, response_compression_algorithm=answer
            )
            check(probe, result.as_numpy("score"))
    for binary in (True, False):
        for binary_output in (True, False):
            wanted = [triton.InferRequestedOutput("score", binary_data=binary_output)]
            result = client.infer(
                "small", inputs(probe, binary=binary), outputs=wanted, request_id="q7", model_version="1",
                priority=1, timeout=5_000_000, headers={"x-request-timeout-ms": "9000"}, parameters={"note": "mine"},
            )  # fmt: skip
            check(probe, result.as_numpy("score"))
            reply = result.get_response()
            assert (reply["id"], reply["model_name"], reply["model_version"]) == ("q7", "small", "1")
    pending = [client.async_infer("small", inputs(probe)) for _ in range(8)]
    for each in pending:
        check(probe, each.get_result().as_numpy("score"))


def refuse(client, probe):
    def error(**changes):
        given = {"model_name": "small", "inputs": inputs(probe), **changes}
        return refusal(InferenceServerException, client.infer, **given)

    assert "not in the repository" in str(error(model_name="other"))
    assert "not loaded" in str(error(model_version="9"))
    assert "floats is missing" in str(error(inputs=inputs(probe)[:3]))
    narrow = triton.InferInput("user", [5], "INT32")
    narrow.set_data_from_numpy(probe.user.astype(np.int32))
    check(probe, client.infer("small", [narrow, *inputs(probe)[1:]]).as_numpy("score"))
    wrong = triton.InferInput("user", [5], "FP32")
    wrong.set_data_from_numpy(probe.user.astype(np.float32))
    assert "expected INT64, got 'FP32'" in str(error(inputs=[wrong, *inputs(probe)[1:]]))
    assert "classification: not served" in str(error(outputs=[triton.InferRequestedOutput("score", class_count=1)]))
    assert "priority" in str(error(priority=-1))


def shared(client, probe):
    floats, score = probe.floats.nbytes, probe.scores.nbytes
    given = shared_memory.create_shared_memory_region("floats", "/freshet_test_in", floats)
    taken = shared_memory.create_shared_memory_region("score", "/freshet_test_out", score + 64)
    try:
        shared_memory.set_shared_memory_region(given, [probe.floats])
        client.register_system_shared_memory("floats", "/freshet_test_in", floats)
        client.register_system_shared_memory("score", "/freshet_test_out", score + 64)
        assert {r["name"] for r in client.get_system_shared_memory_status()} == {"floats", "score"}
        *others, tensor = inputs(probe)
        tensor.set_shared_memory("floats", floats)
        wanted = triton.InferRequestedOutput("score")
        wanted.set_shared_memory("score", score, offset=64)
        result = client.infer("small", [*others, tensor], outputs=[wanted])
        assert result.get_output("score")["shape"] == [len(probe.scores), 1]
        check(probe, shared_memory.get_contents_as_numpy(taken, np.float32, [len(probe.scores)], offset=64))
        tensor.set_shared_memory("floats", floats, offset=8)
        error = refusal(InferenceServerException, client.infer, "small", [*others, tensor])
        assert "at most the region's" in str(error), error
        client.unregister_system_shared_memory("floats")
        assert [r["name"] for r in client.get_system_shared_memory_status()] == ["score"]
        error = refusal(InferenceServerException, client.infer, "small", [*others, tensor])
        assert "not registered" in str(error)
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
        for key in ("/../etc/passwd", "/a.b", "/a/b", ""):
            refusal(InferenceServerException, client.register_system_shared_memory, "x", key, 8)
    finally:
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)


def manage(client, probe):
    client.unload_model("small")
    assert not client.is_model_ready("small")
    assert client.get_model_repository_index()[-1]["state"] == "UNAVAILABLE"
    refusal(InferenceServerException, client.infer, "small", inputs(probe))
    client.load_model("small")
    check(probe, client.infer("small", inputs(probe)).as_numpy("score"))
    error = refusal(InferenceServerException, client.load_model, "small", config="{}")
    assert "config" in str(error)
    refusal(InferenceServerException, client.load_model, "other")


def count(client):
    before = client.get_inference_statistics("small")["model_stats"][0]
    assert before["version"] == "1"
    assert before["inference_stats"]["success"]["count"] > 10
    assert before["inference_stats"]["success"]["ns"] > 0
    assert before["inference_stats"]["fail"]["count"] > 0
    assert before["inference_stats"]["queue"]["count"] > 10
    for phase in ("compute_input", "compute_infer", "compute_output"):
        assert before["inference_stats"][phase]["count"] > 10
    assert before["inference_stats"]["compute_infer"]["ns"] > 0
    assert before["last_inference"] > 1.7e12
    assert sum(batch["compute_infer"]["count"] for batch in before["batch_stats"]) > 0
    assert client.get_inference_statistics()["model_stats"][0]["name"] == "small"


async def concurrently(probe):
    import tritonclient.http.aio as aio

    async with aio.InferenceServerClient(probe.http) as client:
        assert await client.is_model_ready("small")
        results = await asyncio.gather(*[client.infer("small", inputs(probe)) for _ in range(16)])
        for result in results:
            check(probe, result.as_numpy("score"))


def main():
    probe = read()
    with triton.InferenceServerClient(probe.http, concurrency=4) as client:
        describe(client, probe)
        predict(client, probe)
        refuse(client, probe)
        if probe.shared_memory:
            shared(client, probe)
        manage(client, probe)
        count(client)
    asyncio.run(concurrently(probe))
    print("done")


if __name__ == "__main__":
    main()
