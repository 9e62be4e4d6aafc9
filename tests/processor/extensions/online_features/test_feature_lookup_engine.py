"""A Processor whose requests leave out what an online store has: as with all features sent, to the bit."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.extensions.online_features import opening
from freshet_serving.processor.extensions.online_features.online_store import Loss
from freshet_serving.processor.features.limits import RequestLimits
from tests.processor.extensions.online_features.stores import MemoryStore, opened
from tests.support.looked_up import reference, write_package

ITEMS, F2, F3 = [1, 2, 3], [0.5, 1.5, 2.5], [0.0, 1.0, -1.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    write_package(repository)
    return repository


@pytest.fixture
def store():
    store = MemoryStore()
    store.hashes = {b"user:7": {b"tags": b'["a", "c"]', b"f0": b"1.5", b"f1": b"-3"}}
    return store


@pytest.fixture
def processor(folder, store, monkeypatch):
    monkeypatch.setattr(opening, "open_stores", lambda settings, clock: opened(store, ttl_s=0.0))
    with Processor.initialize(ProcessorConfig(str(folder), limits=RequestLimits(max_ids=40))) as processor:
        yield processor
    assert store.closed


def request(**more):
    sent = {"user": np.array(ITEMS), "f2": np.array(F2, np.float32), "f3": np.array(F3, np.float32)}
    return PredictRequest("small", sent | {"user_id": np.array([7])} | more)


def scores(reply):
    return reply.outputs["score"][:, 0]


def test_user_id_scores_as_all_features(processor):
    asked = request()
    found = scores(processor.process(asked))
    np.testing.assert_allclose(found, reference(ITEMS, F2, F3, ["a", "c"], 1.5, -3), atol=1e-5)
    sent = {"tags": Ragged.of([["a", "c"]]), "f0": np.float32([1.5]), "f1": np.float32([-3])}
    assert np.array_equal(scores(processor.process(request(**sent))), found)
    assert set(asked.filled.looked_up) == set(sent)
    assert asked.inputs["f0"].tolist() == [1.5]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tags=st.lists(st.sampled_from(["a", "b", "c", "zz"]), max_size=5),
    f0=st.none() | st.floats(-100, 100, width=32),
    f1=st.none() | st.integers(-1000, 1000),
)
def test_stored_values_score_as_sent_ones(processor, store, tags, f0, f1):
    held = {b"tags": ("[" + ",".join(f'"{tag}"' for tag in tags) + "]").encode()}
    held |= {name: repr(value).encode() for name, value in ((b"f0", f0), (b"f1", f1)) if value is not None}
    store.hashes[b"user:7"] = held
    missing = float("nan")
    sent = {"tags": Ragged.of([tags]) if tags else Ragged.of([[""]])}
    if not tags:
        sent["tags"] = Ragged(sent["tags"].values.__class__.of([]), np.array([0, 0]))
    sent |= {n: np.array([missing if v is None else v], np.float32) for n, v in (("f0", f0), ("f1", f1))}
    assert np.array_equal(scores(processor.process(request())), scores(processor.process(request(**sent))))


def test_no_state_of_the_store_fails_a_request(processor, store):
    store.down = Loss.LATE
    asked = request()
    np.testing.assert_allclose(scores(processor.process(asked)), reference(ITEMS, F2, F3), atol=1e-5)
    assert set(asked.filled.defaulted) == {"tags", "f0", "f1"}


def test_looked_up_ids_count_towards_the_limit_of_the_request(processor, store):
    store.hashes[b"user:7"][b"tags"] = b"[" + b",".join([b'"a"'] * 40) + b"]"
    with pytest.raises(TooLarge, match=r"max_ids: expected at most 40 ids and strings per request, got 4"):
        processor.process(request())


def test_unfilled_input_and_key_of_another_type_are_refused(processor):
    asked = request()
    del asked.inputs["user_id"]
    with pytest.raises(BadInput, match=r"input 'tags' is missing: expected it, or 'user_id'"):
        processor.process(asked)
    with pytest.raises(BadInput, match=r"input 'user_id': expected one integer in each row"):
        processor.process(request(user_id=np.float32([7])))


def test_requests_side_by_side_each_get_their_own_user(processor, store):
    for user in range(20, 40):
        store.hashes[b"user:%d" % user] = {b"f0": b"%d" % user, b"f1": b"0"}
    with ThreadPoolExecutor(4) as pool:
        asked = [request(user_id=np.array([user])) for user in range(20, 40)]
        found = list(pool.map(lambda one: scores(processor.process(one)), asked))
    for user, one in zip(range(20, 40), found):
        np.testing.assert_allclose(one, reference(ITEMS, F2, F3, (), user, 0), atol=1e-5)


def test_without_the_extension_packages_and_stores_are_refused_by_name(folder, without_extensions):
    without_extensions("online_features")
    with pytest.raises(BadInput, match=r"'online_features': as a section .* needs the extension 'online_features'"):
        Processor.initialize(ProcessorConfig(str(folder)))
    with pytest.raises(BadInput, match=r"online_stores needs the extension 'online_features': FRESHET_EXTENSIONS="):
        Processor.initialize(ProcessorConfig(str(folder), online_stores=[{"name": "main", "url": "redis://a"}]))


def test_without_the_extension_other_models_are_served(tmp_path, without_extensions):
    without_extensions("online_features")
    write_package(tmp_path, sections={})
    more = {"tags": Ragged.of([["a"]]), "f0": np.float32([1]), "f1": np.float32([2])}
    with Processor.initialize(ProcessorConfig(str(tmp_path))) as processor:
        reply = processor.process(request(**more))
        np.testing.assert_allclose(scores(reply), reference(ITEMS, F2, F3, ["a"], 1, 2), atol=1e-5)
        assert processor.host.counted(processor.host.model("small").pick()) == {}
