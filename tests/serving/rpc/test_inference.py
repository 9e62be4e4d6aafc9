import grpc
import pytest

from tests.serving.rpc.live import WAIT_S, Live, request, scores


def test_a_prediction_names_what_answered_it():
    with Live() as live:
        for rows in (1, 2, 2, 2):
            reply, call = live.infer.with_call(request(rows=rows), metadata=[("x-caller-id", "me")], timeout=WAIT_S)
            assert scores(reply) == [4.0] * rows
            assert ("x-model-generation", "3.17") in call.trailing_metadata()
            assert ("x-model-version", "3") in call.trailing_metadata()
        callers = {asked.caller for asked in live.processor.requests}
        assert len(callers) == 1
        assert callers != {None}
        assert live.metrics.counts().snapshot()["predicted"] == {"ctr": [4, 7]}


def test_a_stream_keeps_the_order_of_its_requests_and_its_errors_in_it():
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
