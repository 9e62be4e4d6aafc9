import pytest

from freshet_serving.processor.errors import BadInput, Conflict, NotFound
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.watching.stats import GroupStats, SessionStats
from freshet_serving.serving.front.model_control import (
    Forbidden,
    ModelControl,
    ModelControlAuthorizer,
    Unauthenticated,
    no_model_control,
)


class Host:
    """Models with versions on disk and in memory, and what was done to them."""

    def __init__(self, root, **models):
        self.served = {name: set(served) for name, (_, served) in models.items()}
        self.done = []
        for name, (known, _) in models.items():
            for version in known:
                (root / name / str(version)).mkdir(parents=True)
                (root / name / str(version) / "model.json").write_text("{}")

    def models(self):
        return sorted(self.served)

    def status(self, model):
        if model not in self.served:
            raise NotFound(f"model {model!r} is not in the repository")
        return [VersionStatus(v, "AVAILABLE") for v in sorted(self.served[model], reverse=True)]

    def load(self, model, version, by_hand=True):
        self.done.append(("load", model, version, by_hand))
        self.served[model].add(version)

    def unload(self, model, version):
        if (model, version) == ("held", 1):
            raise Conflict("version 1 is held by label stable; move or remove the label first")
        self.done.append(("unload", model, version))
        self.served[model].discard(version)

    def replace_labels(self, model, labels):
        self.done.append(("labels", model, labels))

    def set_policy(self, model, changes):
        self.done.append(("policy", model, changes["versions"]))

    def group_stats(self):
        return {
            "default": GroupStats(1, 0, SessionStats(batches=2, requests=4, wait_s=0.5, busy_s=1.0)),
            "mine": GroupStats(1, 0, SessionStats(batches=7, requests=9)),
        }


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path, ctr=((1, 2, 3), (3,)), cvr=((1,), (1,)), held=((1, 2), (1,)))


@pytest.fixture
def control(host, tmp_path):
    batches = {"64": [2.0, 30.0, 60.0, 10.0], "128": [1.0, 5.0, 5.0, 5.0]}
    served = {"ctr/3": [4, 1000, 256, 1, 50, 100, 200, 20, batches, {"a": 5, "b": 9}]}
    return ModelControl(lambda: host, lambda: served, lambda: Repository(tmp_path), {"mine": {"models": ["cvr"]}})


def config(name, policy="latest", count=1, versions=(), labels=None, base_path=None):
    return {
        "name": name, "base_path": name if base_path is None else base_path, "policy": policy, "count": count,
        "versions": list(versions), "labels": labels or {},
    }  # fmt: skip


def test_model_control_is_refused_when_closed_and_needs_the_token():
    with pytest.raises(Forbidden, match="--model-control explicit"):
        ModelControlAuthorizer().authorize(b"Bearer x")
    ModelControlAuthorizer("explicit").authorize(None)
    guarded = ModelControlAuthorizer("explicit", "secret")
    guarded.authorize(b"bearer secret")
    for wrong in (None, b"", b"Bearer", b"Bearer other", b"Basic secret", b"secret"):
        with pytest.raises(Unauthenticated):
            guarded.authorize(wrong)


def test_load_uses_the_newest_version_and_unload_removes_all(control, host):
    control("unload", {"model": "ctr"})
    assert host.served["ctr"] == set()
    control("load", {"model": "ctr"})
    assert host.done[-1] == ("load", "ctr", 3, False)
    with pytest.raises(NotFound):
        control("load", {"model": "other"})
    with pytest.raises(Conflict, match="held by label"):
        control("unload", {"model": "held"})


def test_reload_loads_first_then_labels_then_unloads(control, host):
    wanted = [config("ctr", "specific", versions=[1, 2], labels={"stable": 1}), config("held", "all")]
    control("reload", {"models": wanted})
    assert host.done == [
        ("load", "ctr", 1, False),
        ("load", "ctr", 2, False),
        ("labels", "ctr", {"stable": 1}),
        ("policy", "ctr", [1, 2]),
        ("load", "held", 2, False),
        ("labels", "held", {}),
        ("policy", "held", "all"),
        ("unload", "ctr", 3),
        ("unload", "cvr", 1),
    ]


def test_policies_select_versions(control, host):
    control("reload", {"models": [config("ctr", "all"), config("cvr"), config("held", "all")]})
    assert host.served["ctr"] == {1, 2, 3}
    control("reload", {"models": [config("ctr", count=2), config("cvr"), config("held", "all")]})
    assert host.served["ctr"] == {2, 3}
    policies = [done for done in host.done[-7:] if done[0] == "policy"]
    assert policies[:2] == [("policy", "ctr", "latest:2"), ("policy", "cvr", "latest:1")]


@pytest.mark.parametrize(
    ("models", "error", "part"),
    [
        ([config("ctr"), config("ctr")], BadInput, "'ctr' occurs more than once"),
        ([config("other")], NotFound, "not in the repository"),
        ([config("ctr", base_path="cvr")], BadInput, "expected the model's own folder"),
        ([config("ctr", base_path="../ctr")], BadInput, "expected the model's own folder"),
        ([config("ctr", base_path="/etc")], BadInput, "expected the model's own folder"),
        ([config("ctr", base_path="ctr\0")], BadInput, "expected the model's own folder"),
        ([config("ctr", "specific", versions=[9])], NotFound, "version 9 of model 'ctr'"),
        ([config("ctr", "specific")], NotFound, "no version to serve"),
        ([config("ctr", "specific", versions=range(1, 1002))], NotFound, "version 4 of model 'ctr'"),
        ([config("ctr", labels={"stable": 1})], BadInput, "version_labels: 'stable'"),
        ([config("ctr", labels={"a/b": 3})], BadInput, "version_labels: expected a name of letters"),
    ],
)
def test_invalid_configuration_changes_nothing(control, host, models, error, part):
    with pytest.raises(error, match=part):
        control("reload", {"models": [config("cvr"), *models]})
    assert host.done == []


def test_absolute_base_path_may_be_the_path_of_the_model(control, host, tmp_path):
    control(
        "reload", {"models": [config("ctr", base_path=str(tmp_path / "ctr")), config("cvr"), config("held", "all")]}
    )
    assert ("load", "held", 2, False) in host.done


def test_statistics_combine_the_version_and_its_group(control):
    (ctr,) = control("statistics", {"model": "ctr", "version": None})["model_stats"]
    assert (ctr["inference_count"], ctr["execution_count"]) == (256, 2)
    assert ctr["inference_stats"]["success"] == {"count": 4, "ns": 1000}
    assert ctr["inference_stats"]["fail"] == {"count": 1, "ns": 50}
    assert ctr["inference_stats"]["queue"] == {"count": 4, "ns": 500_000_000}
    assert ctr["inference_stats"]["compute_infer"] == {"count": 4, "ns": 200}
    assert ctr["inference_stats"]["compute_output"] == {"count": 4, "ns": 20}
    assert ctr["last_inference"] == 9
    assert [(b["batch_size"], b["compute_infer"]) for b in ctr["batch_stats"]] == [
        (64, {"count": 2, "ns": 60}), (128, {"count": 1, "ns": 5}),
    ]  # fmt: skip
    everything = control("statistics", {"model": "", "version": None})["model_stats"]
    assert [entry["name"] for entry in everything] == ["ctr", "cvr", "held"]
    assert everything[1]["execution_count"] == 7
    with pytest.raises(NotFound):
        control("statistics", {"model": "ctr", "version": 9})


def test_process_without_models_refuses_model_control():
    with pytest.raises(Forbidden):
        no_model_control("load", {})
