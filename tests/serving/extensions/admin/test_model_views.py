"""What people ask of one model, of a real processor: bounded, read without the model's lock."""

import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.extensions.admin.fakes import Client
from tests.support.packages import make_delta, make_inputs, write_package


class Real(Client):
    """The admin port of a real processor."""

    def __init__(self, processor, **options):
        super().__init__()
        self.lifecycle = Lifecycle()
        self.lifecycle.open(processor.host)
        self.app = create_admin(self.lifecycle, Metrics(self.lifecycle), **options)


@pytest.fixture
def processor(tmp_path):
    for version in (1, 2):
        write_package(tmp_path, version)
    policy = {"versions": "all", "labels": {"stable": 1, "canary": 2}, "split": {"stable": 50, "canary": 50}}
    policies = {"small": ModelPolicy.parse(policy, "model.small")}
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1, policies=policies)) as opened:
        yield opened


@pytest.fixture
def client(processor):
    return Real(processor, data_address=("127.0.0.1", 8501))


def test_timeline_defaults_to_the_default_version_of_the_model(client, tmp_path):
    write_delta(tmp_path / "delta", make_delta(1, [1, 2]))
    assert client("POST", "/admin/models/small/deltas", content=(tmp_path / "delta").read_bytes()).status_code == 200
    told = client("GET", "/admin/models/small/timeline").json()
    assert (told["version"], told["generation"], len(told["entries"])) == (1, "1.1", 1)
    assert told["entries"][0]["here"]["rows"] == 2
    assert client("GET", "/admin/models/small/timeline?version=2").json()["entries"] == []


def test_tables_show_rows_memory_and_lookups(client, processor):
    processor.process(PredictRequest("small", make_inputs([1, 2, 999], [["a"], ["zz"], []]), version=1))
    tables = {t["name"]: t for t in client("GET", "/admin/models/small/tables").json()["tables"]}
    assert (tables["user"]["rows"], tables["user"]["dim"], tables["user"]["dtype"]) == (20, 4, "float32")
    assert (tables["user"]["lookups"], tables["user"]["defaults"]) == (3, 1)
    assert (tables["tag"]["lookups"], tables["tag"]["defaults"]) == (2, 1)
    assert tables["user"]["nbytes"].keys() >= {"rows", "index", "arena"}


def test_canaries_are_shown_with_both_sides_and_the_bounds(client, processor):
    for n in range(6):
        processor.process(PredictRequest("small", make_inputs([n])))
    told = client("GET", "/admin/models/small/canaries").json()
    (trial,) = told["trials"]
    assert (trial["canary"]["version"], trial["baseline"]["version"]) == (2, 1)
    assert trial["shift"].keys() == {"score"}
    assert told["bounds"]["min_requests"] == 200


def test_canaries_without_trials_are_refused_by_name(client, without_extensions):
    without_extensions("trials")
    reply = client("GET", "/admin/models/small/canaries")
    assert reply.status_code == 400
    assert "canaries needs the extension 'trials'" in reply.text


def test_signature_has_an_example_that_the_model_answers(client, processor):
    told = client("GET", "/admin/models/small/signature").json()
    assert (told["source"], told["data_port"]) == ("made up", 8501)
    assert [i["name"] for i in told["inputs"]] == ["user", "tags", "floats"]
    assert [o["name"] for o in told["outputs"]] == ["score"]
    assert told["inputs"][0]["features"] == [{"name": "user", "kind": "id", "table": "user"}]


def test_invalid_request_is_one_error(client):
    expected = {
        "none/timeline": 404,
        "small/timeline?version=9": 404,
        "small/timeline?version=0": 400,
        "small/timeline?most=501": 400,
        "small/timeline?most=0": 400,
        "small/timeline?version=x": 400,
        f"{'x' * 129}/timeline": 400,
        f"{'x' * 10_000}/tables": 400,
        "none/tables": 404,
        "none/canaries": 404,
        "none/signature": 404,
        "small/signature?version=3": 404,
        "..%2f..%2fetc/tables": 404,
    }
    replies = {path: client("GET", f"/admin/models/{path}") for path in expected}
    assert {path: reply.status_code for path, reply in replies.items()} == expected
    assert {tuple(reply.json()) for reply in replies.values()} == {("error",)}


def test_server_without_user_states_reports_none(client, monkeypatch):
    assert client("GET", "/admin/models/small/user_state").json() == {"model": "small", "users": None, "versions": []}
    assert client("GET", "/admin/models/none/user_state").status_code == 404
    monkeypatch.setattr(ENGINE, "get", lambda part, name: None)
    reply = client("GET", "/admin/models/small/user_state")
    assert (reply.status_code, "needs the extension 'user_state'" in reply.json()["error"]) == (400, True)
