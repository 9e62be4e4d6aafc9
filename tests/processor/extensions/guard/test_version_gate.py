"""The gate's verdicts on versions whose scores are made up."""

import gc
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.extensions.guard.guard import guard_of
from freshet_serving.processor.extensions.guard.kept_file import ServedBefore
from freshet_serving.processor.extensions.guard.kept_requests import KeptRequest, dump_requests, parse_requests
from freshet_serving.processor.extensions.guard.version_gate import MOST_VERDICTS, VersionGate
from freshet_serving.processor.extensions.guard.version_judge import LEARN
from freshet_serving.processor.repository import Repository, VersionReader, root_hash
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_actions import release_version
from freshet_serving.processor.watching import IN_LINE, OUT_OF_LINE, UNJUDGED, RequestScores
from freshet_serving.processor.watching.input_histogram import input_histograms
from tests.processor.versions.models import open_model
from tests.support.guarded import USERS, as_inputs, weights, write_guarded
from tests.support.packages import write_package

ROWS = 128
GOOD = 1 / (1 + np.exp(2 - np.random.default_rng(0).standard_normal(ROWS)))


class Replicas:
    """Replicas of a version that scores as a test says."""

    def __init__(self, scores, kept=b"requests"):
        self._scores, self._kept, self.remembered = scores, kept, []

    def kept(self):
        return self._kept

    def remember(self, requests):
        self.remembered.append(requests)

    def score(self, requests, max_s):
        assert requests == b"requests"
        if self._scores is None:
            return None
        whole = np.ones(ROWS, bool)
        return RequestScores(whole, ~whole, {"ctr": np.asarray(self._scores, np.float32).reshape(-1, 1)})


class Version:
    """A version with such replicas."""

    def __init__(self, scores, kept=b"requests", number=2):
        self.replicas, self.manifest = Replicas(scores, kept), SimpleNamespace(version=number, inputs=["a"], notes={})


SERVED = Version(GOOD, number=1)


class Files:
    """Kept files of one model, in memory."""

    def __init__(self, requests=b""):
        self.requests, self.learned, self.before = requests, None, None

    def read(self, model, inputs):
        assert (model, inputs) == ("small", ["a"])
        return self.requests, self.learned

    def write(self, model, inputs, requests, learned, before):
        assert (model, inputs) == ("small", ["a"])
        self.requests, self.learned, self.before = requests, learned, before

    def served(self, model):
        assert model == "small"
        return self.before


@pytest.fixture
def gate():
    return VersionGate("small", ModelPolicy, FakeClock())


def test_version_in_line_is_not_held(gate):
    assert gate.check(SERVED, Version(GOOD * 1.1)) == ""
    assert gate.verdicts[2].outcome == IN_LINE
    assert gate.outcomes == {IN_LINE: 1}
    assert sum(gate.judge_s.counts) == 1


def test_version_out_of_line_is_held_and_logged(gate, caplog):
    reason = gate.check(SERVED, Version(GOOD * 1e-4))
    verdict = gate.verdicts[2]
    assert (verdict.outcome, verdict.reason) == (OUT_OF_LINE, reason)
    assert reason.startswith("the mean score of 'ctr' would change by a factor of 1e+04")
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.ERROR, f"small version 2: out of line: {verdict.reason}")
    ]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (Version(GOOD, kept=b""), Version(GOOD), "no requests of the served version are kept yet"),
        (SERVED, Version(None), "its rows are in a row store, or no process could score the kept requests"),
        (Version(None), Version(GOOD), "its rows are in a row store, or no process could score the kept requests"),
        (SERVED, Version(["x"]), "the kept requests could not be scored; see the server's log"),
    ],
)
def test_version_that_cannot_be_scored_is_served_unless_the_policy_holds_it(gate, before, after, reason):
    assert gate.check(before, after) == ""
    assert (gate.verdicts[2].outcome, gate.verdicts[2].reason) == (UNJUDGED, reason)
    strict = VersionGate("small", lambda: ModelPolicy(unjudged="hold"), FakeClock())
    assert strict.check(before, after) == f"not judged: {reason}"


def test_version_is_not_judged_while_memory_is_short(gate):
    short = Version(GOOD)
    short.replicas.score = lambda *_: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(NotReady, match="not enough memory"):
        gate.check(SERVED, short)
    assert not gate.verdicts
    assert not gate.outcomes


def test_gate_is_off_with_the_delta_guard():
    policy = ModelPolicy.parse({"delta_guard": {"mode": "off"}}, "model.small")
    assert not VersionGate("small", lambda: policy, FakeClock()).judges


def test_gate_learns_from_versions_that_are_still_served_when_the_next_one_comes(gate):
    for number in range(2, 2 + LEARN):
        assert gate.judge(Version(GOOD, number=number - 1), Version(GOOD * 1.01, number=number)).outcome == IN_LINE
    # Version 1 is still served: the newest of those changes was not one for good.
    assert gate.judge(SERVED, Version(GOOD * 1.6, number=9)).outcome == IN_LINE
    assert gate.judge(Version(GOOD, number=LEARN + 1), Version(GOOD * 1.6, number=10)).outcome == OUT_OF_LINE


def test_gate_learns_nothing_from_versions_that_it_could_not_judge(gate):
    alike = np.resize(GOOD[:4], ROWS)
    for number in range(2, 3 + LEARN):
        gate.judge(Version(alike, number=number - 1), Version(alike, number=number))
    assert set(gate.outcomes) == {UNJUDGED}
    assert gate.judge(SERVED, Version(GOOD * 1.6, number=20)).outcome == IN_LINE


def test_verdicts_are_bounded(gate):
    for number in range(2, MOST_VERDICTS + 10):
        gate.judge(Version(GOOD, kept=b"", number=1), Version(GOOD, number=number))
    assert len(gate.verdicts) == MOST_VERDICTS
    assert max(gate.verdicts) == MOST_VERDICTS + 9


def test_requests_are_carried_over_to_the_version_that_takes_over(gate):
    new = Version(GOOD)
    gate.took_over(SERVED, new)
    gate.took_over(Version(GOOD, kept=b""), new)
    gate.took_over(None, new)
    assert new.replicas.remembered == [b"requests"]


def test_requests_survive_a_restart():
    files, after = Files(), Version(GOOD)
    VersionGate("small", ModelPolicy, FakeClock(), files).keep(SERVED)
    VersionGate("small", ModelPolicy, FakeClock(), files).took_over(None, after)
    assert after.replicas.remembered == [b"requests"]


def test_limits_that_were_learned_survive_a_restart():
    files, before = Files(), VersionGate("small", ModelPolicy, FakeClock())
    before._kept_files = files
    for number in range(2, 3 + LEARN):
        before.judge(Version(GOOD, number=number - 1), Version(GOOD * 1.01, number=number))
    before.keep(SERVED)
    after = VersionGate("small", ModelPolicy, FakeClock(), files)
    after.took_over(None, SERVED)
    assert after.judge(SERVED, Version(GOOD * 1.6)).outcome == OUT_OF_LINE


def test_nothing_is_written_without_requests_or_a_folder(gate):
    files = Files(b"before")
    VersionGate("small", ModelPolicy, FakeClock(), files).keep(Version(GOOD, kept=b""))
    gate.keep(SERVED)
    assert files.requests == b"before"


def test_drift_of_inputs_is_measured_against_the_version_before(gate):
    def asked(low):
        return Version(GOOD, kept=dump_requests([KeptRequest({"a": np.arange(low, low + 8)}, 8)] * 10))

    gate.keep(asked(0))
    assert gate.input_drift == {}
    gate.took_over(asked(0), Version(GOOD))
    gate.keep(asked(0))
    assert gate.input_drift == {"a": 0.0}
    gate.keep(asked(4))
    assert gate.input_drift["a"] > 0.25


def test_drift_of_inputs_is_measured_against_training_where_notes_say(gate):
    version = Version(GOOD, kept=dump_requests([KeptRequest({"a": np.arange(8) % 4}, 8)] * 10))
    version.manifest.notes = {"inputs": input_histograms([{"a": np.arange(400) % 4}])}
    gate.keep(version)
    assert gate.input_drift["a"] < 0.05
    version.manifest.notes = {"inputs": input_histograms([{"a": 4 + np.arange(400) % 4}])}
    gate.keep(version)
    assert gate.input_drift["a"] > 0.25


def test_kept_requests_that_cannot_be_read_are_a_line_in_the_log(gate, caplog):
    gate.took_over(SERVED, Version(GOOD))
    gate.keep(SERVED)
    assert "cannot read the kept requests of small" in caplog.text


def test_failure_to_carry_requests_is_logged(gate, caplog):
    gate.took_over(SERVED, object())
    assert "cannot give small the requests that are kept" in caplog.text


ROOTS = {1: "a", 2: "b", 3: "c"}


def started(before, others=(1, 2, 3), files=None, policy=ModelPolicy):
    """A gate that starts with version 3 chosen, and the version to load first."""
    files = files or Files()
    files.before = before
    gate = VersionGate("small", policy, FakeClock(), files)
    return gate, gate.begin({3}, set(others), ROOTS.get)


def test_version_served_before_a_start_is_loaded_first_to_judge_the_newest():
    gate, first = started(ServedBefore(2, {1: "a", 2: "b"}))
    assert first == 2
    assert not gate.knows(3, "c")
    assert gate.begin({3}, {1, 2, 3}, ROOTS.get) == 0


@pytest.mark.parametrize(
    "before",
    [
        ServedBefore(3, {3: "c"}),
        ServedBefore(2, {2: "b", 3: "c"}),
        ServedBefore(2, {2: "another"}),
        ServedBefore(7, {7: "g"}),
    ],
)
def test_newest_version_is_served_at_a_start_if_nothing_older_can_judge_it(before):
    gate, first = started(before)
    assert (first, gate.knows(3, "c"), gate.verdicts) == (0, True, {})


def test_barred_version_judges_nothing_at_a_start():
    assert started(ServedBefore(2, {2: "b"}), others=(1, 3))[1] == 0


def test_start_without_a_record_says_that_the_newest_is_unjudged(caplog):
    caplog.set_level("INFO", logger="freshet.gate")
    gate, first = started(None)
    assert (first, gate.knows(3, "c"), gate.verdicts[3].kind) == (0, True, "start")
    assert "small version 3 is unjudged (start)" in caplog.text
    assert started(None, others={3})[0].verdicts == {}


def test_record_of_what_is_served_is_written_with_the_requests():
    files = Files()
    gate = VersionGate("small", ModelPolicy, FakeClock(), files)
    gate.begin({1}, {1}, ROOTS.get)
    gate.let_in(2, "b")
    gate.keep(Version(GOOD, number=2))
    assert files.before == ServedBefore(2, {1: "a", 2: "b"})


def test_erased_user_is_not_in_what_the_next_version_takes_over(tmp_path):
    kept = dump_requests([KeptRequest({"a": np.array([user])}, 1) for user in (3, 7)])
    gate = VersionGate("small", ModelPolicy, FakeClock())
    gate.took_over(Version(GOOD, kept), Version(GOOD))
    assert gate.erase_user(ErasedUser("other", ("a",), "7")) == {}
    assert gate.erase_user(ErasedUser("small", ("a",), "7")) == {"kept_requests": 1}
    assert [request.inputs["a"].tolist() for request in parse_requests(gate._reference)] == [[3]]
    assert gate.erase_user(ErasedUser("small", ("b",), "7")) == {"kept_requests": 1}, "nobody knows whose it is"


HELD = "small version 2 is held by gate: the mean score of 'score' would change by a factor of"


def write_bad(root, version=2):
    """A version as a retrain with all labels 0 makes it."""

    def far_below(seed):
        made = weights()
        made["mlp_out/kernel"][0] -= 8
        return made

    return write_package(root, version, USERS, [f"t{n}" for n in range(80)], weights=far_below)


def asked(model, requests=20, rows=8, number=None):
    """The model once it has been requested to score so many rows."""
    replica = model.pick(number).replicas
    for seed in range(requests):
        inputs = as_inputs(rows, seed)
        replica.sample.take(replica.plan.bind_inputs(inputs), inputs)
    return model


@pytest.fixture
def root(tmp_path):
    write_guarded(tmp_path)
    return tmp_path


def states(model):
    return {status.version: (status.state, status.error) for status in model.routes.status()}


def test_bad_version_is_held_and_the_old_one_goes_on(root):
    model = asked(open_model(root))
    before = model.pick()
    kept = before.replicas.kept()
    scores = before.replicas.score(kept, 60.0).outputs["score"].copy()
    write_bad(root)
    (line,) = model.poll()
    assert line.startswith(HELD)
    assert model.pick() is before
    np.testing.assert_array_equal(before.replicas.score(kept, 60.0).outputs["score"], scores)
    state, error = states(model)[2]
    cure = "; `freshet version release small 2` serves it, `freshet version reject small 2` withdraws it"
    assert (state, line) == ("END", f"small version 2 is {error}{cure}")
    assert guard_of(model).gate.verdicts[2].outcome == OUT_OF_LINE
    assert model.poll() == []


def test_good_version_takes_over_with_the_kept_requests(root):
    model = asked(open_model(root))
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert guard_of(model).gate.verdicts[2].outcome == IN_LINE
    write_bad(root, 3)
    (line,) = model.poll()
    assert "version 3 is held by gate" in line


def test_hold_is_a_record_that_binds_until_it_is_released(root):
    model = asked(open_model(root))
    folder = write_bad(root)
    model.poll()
    records = Repository(root).version_records("small")
    (record,) = records.all()
    assert (record.version, record.action, record.by) == (2, "hold", "gate")
    assert record.manifest == root_hash(VersionReader(folder).manifest)
    assert model.decisions.barred == {2: record.describe()}
    assert states(model)[2] == ("END", record.describe())
    records.add(2, record.manifest, "release", "a new campaign", "ana")
    assert "small 2.0 loaded" in model.poll()
    assert not model.decisions.barred


def test_version_waits_while_memory_to_judge_it_is_short(root, monkeypatch):
    clock = FakeClock()
    model = asked(open_model(root, clock=clock))
    write_bad(root)
    with monkeypatch.context() as patch:
        patch.setattr(model.pick().replicas, "score", lambda *_: (_ for _ in ()).throw(MemoryError))
        assert model.poll() == ["small version 2 waits: not enough memory"]
    assert list(model.routes.served) == [1]
    clock.advance(1.0)
    (line,) = model.poll()
    assert line.startswith(HELD)


def test_newer_version_is_judged_beside_a_held_one(root):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    write_guarded(root, 3)
    assert model.poll() == ["small 3.0 loaded", "small version 1 unloaded"]


def test_version_is_unjudged_without_requests_and_served(root):
    model = open_model(root)
    write_bad(root)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert guard_of(model).gate.verdicts[2].outcome == UNJUDGED


@pytest.mark.parametrize("more", [{"versions": "latest:2"}, {"labels": {"old": 1}}])
def test_start_beside_an_older_version_holds_nothing(root, more):
    """A restart took the served version from all servers: version 1 was loaded first, and had no requests."""
    write_guarded(root, 2)
    model = open_model(root, policy=ModelPolicy.parse({"unjudged": "hold", **more}, "model"))
    assert str(model.pick().generation) == "2.0"
    assert not Repository(root).version_records("small").all()
    write_guarded(root, 3)
    model.poll()
    assert model.decisions.held.keys() == {3}


def test_version_that_comes_back_is_not_judged_again(root):
    model = asked(open_model(root, policy=ModelPolicy.parse({"versions": "latest:2"}, "model")))
    write_guarded(root, 2)
    model.poll()
    model._unload_corrupt(2, model.routes.served[2], "dense.safetensors: damaged")
    assert list(model.routes.served) == [1]
    assert model.poll() == ["small 2.0 loaded"]
    assert sum(guard_of(model).gate.outcomes.values()) == 1


def restarted(root, folder, **options):
    """The model after its server was killed while it served version 1, and a version was added meanwhile."""
    folder.mkdir()
    model = asked(open_model(root, scratch=str(folder)))
    guard_of(model).gate.keep(model.pick())
    write_bad(root)
    return open_model(root, scratch=str(folder), **options)


def test_bad_version_is_not_let_in_by_a_restart(root, tmp_path):
    model = restarted(root, tmp_path / "scratch")
    assert model.pick().manifest.version == 1
    assert model.decisions.held.keys() == {2}
    model.poll()
    assert list(model.routes.served) == [1]


def test_start_goes_on_with_the_newest_if_the_version_before_is_damaged(root, tmp_path):
    model = asked(open_model(root, scratch=str(tmp_path)))
    guard_of(model).gate.keep(model.pick())
    write_bad(root)
    for path in (root / "small" / "1").glob("*.safetensors"):
        path.unlink()
    again = open_model(root, scratch=str(tmp_path))
    assert list(again.routes.served) == [2]


def test_good_version_takes_over_at_a_restart(root, tmp_path):
    model = asked(open_model(root, scratch=str(tmp_path)))
    guard_of(model).gate.keep(model.pick())
    write_guarded(root, 2)
    again = open_model(root, scratch=str(tmp_path))
    assert list(again.routes.served) == [2]
    assert guard_of(again).gate.verdicts[2].outcome == IN_LINE


def test_version_that_a_person_names_is_not_judged(root):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    model.load(2)
    assert model.pick().manifest.version == 2
    assert 1 in model.routes.served or model.poll() == ["small version 1 unloaded"]


def test_labelled_version_is_not_judged(root):
    model = asked(open_model(root))
    write_bad(root)
    model.set_label("canary", 2)
    assert set(model.routes.served) >= {2}
    assert not guard_of(model).gate.verdicts


@pytest.mark.parametrize("released", [False, True])
def test_held_version_stays_without_its_label_once_it_is_released(root, released):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    assert model.decisions.held.keys() == {2}
    model.set_label("next", 2)
    model.poll()
    assert (set(model.routes.served), model.pick().manifest.version) == ({1, 2}, 1)
    if released:
        release_version(Repository(root), "small", 2, "clients ask for it")
        model.poll()
    model.remove_label("next")
    model.poll()
    assert model.pick().manifest.version == (2 if released else 1)
    assert (2 in model.routes.served) == released


def test_older_version_is_not_judged(tmp_path):
    write_guarded(tmp_path, 3)
    model = asked(open_model(tmp_path, policy=ModelPolicy.parse({"versions": "latest:2"}, "model")))
    write_bad(tmp_path)
    assert model.poll() == ["small 2.0 loaded"]
    assert not guard_of(model).gate.verdicts


@pytest.mark.unguarded("the guard's mode is what it is about")
def test_nothing_is_judged_while_the_guard_is_off(root):
    policy = ModelPolicy.parse({"delta_guard": {"mode": "off"}, "bake_s": 0}, "model.small")
    model = asked(open_model(root, policy=policy))
    write_bad(root)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert not guard_of(model).gate.verdicts


def test_held_version_is_closed_and_freed(root):
    model, loaded = asked(open_model(root)), []
    connect = model._loader.connect

    def connected(version):
        loaded.append(weakref.ref(version))
        return connect(version)

    model._loader.connect = connected
    write_bad(root)
    gc.disable()
    try:
        model.poll()
        assert [version() for version in loaded] == [None]
    finally:
        gc.enable()


def test_replaced_version_stays_for_the_bake_time(root):
    clock = FakeClock()
    model = open_model(root, policy=ModelPolicy.parse({"bake_s": 60}, "model"), clock=clock)
    model._selection.bake._free = lambda: 0.5
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded"]
    assert set(model.routes.served) == {1, 2}
    assert model.pick().manifest.version == 2
    clock.advance(59.0)
    assert model.poll() == []
    clock.advance(1.0)
    assert model.poll() == ["small version 1 unloaded"]


def test_replaced_version_leaves_early_without_memory(root):
    clock = FakeClock()
    model = open_model(root, policy=ModelPolicy.parse({"bake_s": 60}, "model"), clock=clock)
    model._selection.bake._free = lambda: 0.1
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
