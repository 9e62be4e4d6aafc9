"""Histories over the network: every dialect and form of lists gives the scores that training computed."""

import json

import numpy as np
import pytest

from freshet_serving import BadInput, Client, Ragged
from tests.e2e.dialects import DIALECTS, lists
from tests.e2e.servers import ALONE, LiveServer
from tests.models.zoo import next_item_models
from tests.models.zoo.sequence_models import make_batch, make_trainer, of_request, publish

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LENGTHS = (0, 1, 7, 50, 64, 100)
"""Events of the users that are asked for; the model reads the newest 64."""
CANDIDATES = 5
RANKERS = ("stca", pytest.param("sasrec", marks=pytest.mark.campaign))
"""Their events have a number."""
of_rankers = pytest.mark.parametrize("served", RANKERS, indirect=True, scope="module")


@pytest.fixture(scope="module", params=[*RANKERS, pytest.param("sasrec_next", marks=pytest.mark.campaign), "hstu_next"])
def served(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param.endswith("_next"):
        trainer = next_item_models.learned(request.param, 64, 2)
    else:
        trainer = make_trainer(request.param, 64, floats=True)
        trainer.learn(make_batch(64, LENGTHS, floats=True))
    publish(trainer, folder / "repository", (1, 8))
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as live:
        yield live, trainer


def asked(trainer, length):
    """The columns of one user with a history of this length, and candidates."""
    columns = make_batch(CANDIDATES, (length,), seed=length, timed=True, floats=True).columns
    columns = of_request(columns, CANDIDATES) | {"user": np.full(CANDIDATES, columns["user"][0])}
    read = {i.name for i in trainer.manifest.inputs}
    return {name: column for name, column in columns.items() if name in read}


def forms(columns):
    """The same request, with its lists in each form that tensors may have."""
    plain = {name: column for name, column in columns.items() if not isinstance(column, Ragged)}
    lists = {name: column for name, column in columns.items() if isinstance(column, Ragged)}
    splits = lists["history.item"].row_splits
    yield columns
    padded = {name: np.append(c.values, np.zeros(3, c.values.dtype))[np.newaxis] for name, c in lists.items()}
    yield plain | padded | {"history.lengths": np.diff(splits)}


@pytest.mark.parametrize("length", LENGTHS)
def test_every_dialect_gives_the_trained_scores(served, length):
    live, trainer = served
    columns = asked(trainer, length)
    expected = trainer.score(columns)
    for form, inputs in enumerate(forms(columns)):
        for name, ask in DIALECTS.items():
            # Padded lists are tensors; JSON and DeepRec have lists as they are.
            if form == 0 or name.startswith(("KServe", "client")) or name == "tensorflow gRPC":
                scores = np.ravel(ask(live, "m", inputs).output("score"))
                np.testing.assert_allclose(scores, expected, atol=1e-5, err_msg=name)


@of_rankers
def test_floats_that_do_not_fit_are_refused_by_name(served):
    live, trainer = served
    columns = asked(trainer, 7)
    as_json = {n: lists(column) for n, column in columns.items()}
    as_json["history.watched"] = [[1.5] * 7]
    where = "'history.watched': expected"
    for change, wanted in {
        "[[1.5, 2.5]]": f"{where} lists as long as those of 'history.item'",
        "[[1, 1, 1, 1, 1, 1, Infinity]]": f"{where} finite numbers (or NaN), got inf in row 0, column 6",
        "[[1, 1, 1, 1, 1, 1, 1e60]]": "history.watched: Cannot convert JSON value to float without loss of precision",
        '[["a", 1, 1, 1, 1, 1, 1]]': "history.watched: JSON Value:",
    }.items():
        body = json.dumps({"inputs": as_json}).replace(json.dumps(as_json["history.watched"]), change)
        status, _, reply = live.request("POST", "/v1/models/m:predict", body)
        assert (status, wanted in json.loads(reply)["error"]) == (400, True), reply
    columns["history.watched"].values[3] = -np.inf
    with Client(live.address("grpc")) as client:
        for form in forms(columns):
            with pytest.raises(BadInput, match=f"{where} finite numbers .* -inf in row 0, column 3"):
                client.predict("m", form)


@of_rankers
def test_metadata_and_the_example_name_the_floats(served):
    live, _ = served
    _, _, reply = live.request("GET", "/v2/models/m")
    found = {i["name"]: (i["datatype"], i["shape"]) for i in json.loads(reply)["inputs"]}
    assert found["history.watched"] == ("FP32", [-1])
    _, _, reply = live.request("GET", "/v1/models/m/metadata")
    signature = json.loads(reply)["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["history.watched"]["dtype"] == "DT_FLOAT"
