"""Sessions of users, against a server that keeps users; what is sent over HTTP is compared as bytes."""

import json

import numpy as np
import pytest

from freshet_serving import AsyncClient, BadInput, Client, Conflict, UserGone
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.serving.client.http_transport import decode, encode
from freshet_serving.serving.client.prediction import ClientCall
from freshet_serving.serving.client.user_session import as_rows, parameters_of
from tests.serving.client.test_http_transport import reply, score
from tests.serving.rpc.live import Live
from tests.support.coroutines import on_loop
from tests.support.ranked import MODEL, write_ranked

ITEMS = {"item": [5, 6, 7]}


@pytest.fixture
def address(tmp_path):
    write_ranked(tmp_path)
    config = ProcessorConfig(str(tmp_path), sessions=1, user_state_mb=4)
    with Processor.initialize(config) as processor, Live(processor.predictor) as live:
        yield f"grpc://{live.address}"


def whole(client, *items):
    return client.rank(MODEL, {"history.item": Ragged.of([items])}, ITEMS, output="score", timeout_s=5)


def events(*items):
    return {"history.item": list(items)}


def test_user_is_changed_scored_and_forgotten(address):
    with Client(address, timeout_s=5) as client:
        user = client.user(MODEL, 7)
        prepared = user.prepare(events(1, 2))
        assert prepared.outputs["score"].shape == (0, 1)
        np.testing.assert_allclose(user.score(ITEMS, output="score"), whole(client, 1, 2), rtol=1e-5)
        appended = user.append(events(3), version=prepared.sequence_version)
        assert appended.sequence_version > prepared.sequence_version
        with pytest.raises(Conflict, match="sequence_version"):
            user.append(events(3), version=prepared.sequence_version)
        np.testing.assert_allclose(
            user.score(ITEMS, events=events(4), output="score"), whole(client, 1, 2, 3, 4), rtol=1e-5
        )
        user.remove(events(3))
        np.testing.assert_allclose(user.score(ITEMS, output="score"), whole(client, 1, 2, 4), rtol=1e-5)
        user.replace(events(8))
        best = user.recommend(3)
        assert best.item_ids.tolist() == client.recommend(MODEL, events(8), 3).item_ids.tolist()
        user.release()
        with pytest.raises(UserGone, match="sequence_id: nothing is kept under it"):
            user.score(ITEMS)


@on_loop
async def test_user_of_an_async_client(address):
    async with AsyncClient(address, timeout_s=5) as client:
        user = client.user(MODEL, "seven")
        await user.prepare(events(1, 2))
        await user.append(events(3))
        await user.remove(events(2))
        scores = await user.score(ITEMS, output="score")
        expected = await client.rank(MODEL, {"history.item": Ragged.of([[1, 3]])}, ITEMS, output="score")
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        await user.replace(events(4))
        assert len((await user.recommend(2)).item_ids) == 2
        await user.release()
        with pytest.raises(UserGone):
            await user.score(ITEMS)


def test_parameters_and_the_version_travel_over_http():
    call = ClientCall("m", None, [], (), (), parameters_of("u", 5, {"sequence_end": True}))
    _, headers, body = encode(call, None)
    sent = json.loads(body[: int(headers["inference-header-content-length"])])["parameters"]
    assert sent == {"binary_data_output": True, "sequence_id": "u", "sequence_version": 5, "sequence_end": True}
    status, answered, content = (200, *reply([score()], np.zeros(2, "<f4").tobytes()))
    assert decode(status, answered, content).sequence_version == 0
    assert decode(status, {**answered, "x-sequence-version": "9"}, content).sequence_version == 9
    assert decode(status, answered, content).state_generation == ""
    assert decode(status, {**answered, "x-state-generation": "3.5"}, content).state_generation == "3.5"
    with pytest.raises(UserGone, match=r"^gone$"):
        decode(410, {}, b'{"error": "gone"}')


def test_lists_are_histories_and_other_values_are_rows():
    rows = as_rows({"h.item": [3, 5], "age": 7, "v": [[0.5, 1.0]]})
    assert rows["h.item"].values.tolist() == [3, 5]
    assert (rows["age"], rows["v"]) == ([7], [[0.5, 1.0]])


@pytest.mark.parametrize("number", [7, np.int64(7), np.uint64(2**64 - 1)])
def test_id_is_any_whole_number(address, number):
    with Client(address, timeout_s=5) as client:
        user = client.user(MODEL, number)
        user.prepare(events(1))
        assert client.user(MODEL, str(number)).score(ITEMS, output="score").shape == (3,)


@pytest.mark.parametrize("value", [2**64, 1.5, None])
def test_parameter_that_grpc_cannot_hold_is_refused_by_name(address, value):
    with Client(address) as client, pytest.raises(BadInput, match=r"^parameters\[x\]: expected text, a boolean or"):
        client.predict(MODEL, {}, parameters={"x": value})
