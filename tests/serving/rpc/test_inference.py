import grpc
import pytest

from freshet_serving.serving.codecs.messages import message
from tests.serving.rpc.live import WAIT_S, Live, refused, request, scores


def test_prediction_names_the_answering_version():
    with Live() as live:
        for rows in (1, 2, 2, 2):
            reply, call = live.infer.with_call(request(rows=rows), timeout=WAIT_S)
            assert scores(reply) == [4.0] * rows
            assert ("x-model-generation", "3.17") in call.trailing_metadata()
            assert ("x-model-version", "3") in call.trailing_metadata()
        assert live.metrics.counts().snapshot()["predicted"] == {"ctr": [4, 7]}


def test_stream_keeps_the_order_of_requests_and_errors():
    with Live() as live:
        made = [request(rows=1 + n % 3, model="ctr" if n != 3 else "other", id=str(n)) for n in range(9)]
        replies = list(live.stream(iter(made), timeout=WAIT_S))
        assert [r.infer_response.id for r in replies] == ["0", "1", "2", "", "4", "5", "6", "7", "8"]
        assert replies[3].error_message == "model 'other' is not in the repository"
        assert [len(scores(r.infer_response)) for r in replies[:3]] == [1, 2, 3]
        stream = live.stream(iter(made), metadata=[("triton_grpc_error", "true")], timeout=WAIT_S)
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_last_reply_of_a_stream_is_marked_on_request():
    marked = request(rows=2)
    marked.parameters["triton_enable_empty_final_response"].bool_param = True
    with Live() as live:
        # The second of each kind is read by its template.
        made = [marked, request(rows=2), marked, request(rows=2)]
        replies = [reply.infer_response for reply in live.stream(iter(made), timeout=WAIT_S)]
        assert [dict(reply.parameters) != {} for reply in replies] == [True, False, True, False]
        assert replies[0].parameters["triton_final_response"].bool_param is True
        assert [scores(reply) for reply in replies] == [scores(replies[1])] * 4
        assert not live.infer(marked, timeout=WAIT_S).parameters


def test_unsupported_triton_method_is_refused_with_an_alternative():
    alternatives = {
        "SystemSharedMemoryStatus": "shared memory is disabled; --shared-memory on enables it",
        "CudaSharedMemoryRegister": "CUDA shared memory is not supported",
        "TraceSetting": "trace settings are not supported",
        "LogSettings": "set them with the option log_level",
    }
    with Live() as live:
        for method, alternative in alternatives.items():
            call = live.unary(f"/inference.GRPCInferenceService/{method}", "inference.ServerLiveResponse")
            error = refused(call, message("inference.ServerLiveRequest")())
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, method
            assert alternative in error.details()
