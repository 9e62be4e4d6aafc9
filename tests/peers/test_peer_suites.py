"""Suites of TensorFlow Serving, the Open Inference Protocol and Triton, asked of one live server.

Each suite holds its floor, and each miss is one that its table names with the reason (docs/reference/compatibility.md).
TensorFlow Serving's suites are also asked of its own models as they are stored, where FRESHET_TFS_TESTDATA names them.
"""

from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="the suites' models are imported, which needs the train extra")

from freshet_serving import Client
from tests.peers import oip_suite, tfs_grpc_suite, tfs_rest_suite, triton_suite
from tests.peers.expectations import count
from tests.peers.peer_models import TESTDATA, serve_peer_models

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.tensorflow]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
# Suite -> its expectations, how many hold, and the share that has to: what was asked for in the first place.
SUITES = {
    "TensorFlow Serving REST": (tfs_rest_suite.SUITE, 92, 77 / 92),
    "TensorFlow Serving gRPC": (tfs_grpc_suite.SUITE, 38, 33 / 35),
    "Open Inference Protocol": (oip_suite.SUITE, 48, 1.0),
    "Triton QA": (triton_suite.SUITE, 42, 42 / 46),
}
# As many hold of its models as they are stored.
STORED_SUITES = ("TensorFlow Serving REST", "TensorFlow Serving gRPC")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with serve_peer_models(tmp_path_factory.mktemp("peers")) as server:
        yield server


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    if not TESTDATA:
        pytest.skip("FRESHET_TFS_TESTDATA is not set to tensorflow_serving/servables/tensorflow/testdata")
    with serve_peer_models(tmp_path_factory.mktemp("stored"), Path(TESTDATA)) as server:
        yield server


@pytest.mark.parametrize("name", SUITES)
def test_peer_suite_reaches_its_threshold_and_every_miss_is_explained(live, name, record_property):
    suite, held, share = SUITES[name]
    names = [expectation.name for expectation in suite]
    assert len(set(names)) == len(names)
    counted = count(suite, live)
    record_property("held", f"{counted.held} of {counted.asked}")
    print(f"{name}: {counted.held} of {counted.asked}", *counted.misses, sep="\n  ")
    assert not counted.wrong, "\n".join(counted.wrong)
    assert counted.held == held, "the floor, and the page, are to say so"
    assert counted.held / counted.asked >= share


@pytest.mark.parametrize("name", STORED_SUITES)
def test_stored_models_of_tensorflow_serving_do_as_rebuilt_ones(stored, name, record_property):
    suite, held, _ = SUITES[name]
    counted = count(suite, stored)
    record_property("held", f"{counted.held} of {counted.asked}")
    print(f"{name}, stored models: {counted.held} of {counted.asked}", *counted.misses, sep="\n  ")
    assert not counted.wrong, "\n".join(counted.wrong)
    assert counted.held == held


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_typed_client_reads_strings(live, transport):
    port = live.http_port if transport == "http" else live.grpc_port
    with Client(f"{transport}://127.0.0.1:{port}") as client:
        found = client.predict("named_lengths", {"x": ["cat", "hippopotamus"]}).outputs
    assert found["name"].tolist() == ["short", "long"]
    assert found["length"].tolist() == [3, 12]


def test_page_has_the_counts_and_every_reason():
    page = " ".join(PAGE.read_text().split())
    for name, (suite, held, _) in SUITES.items():
        line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
        assert line.split("|")[3:5] == [f" {held} ", f" {len(suite)} "]
        for expectation in suite:
            assert expectation.miss in page, expectation.name
