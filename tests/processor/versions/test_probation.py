"""Deltas on probation, on real versions: good ones are served, each fault is held, and what the records say of it."""

import pytest

from processor.chain.ledger import Ledger
from processor.clock import SystemClock
from processor.errors import Conflict, NotReady
from processor.generation import Generation
from processor.package.delta import write_delta
from processor.package.repository import Repository
from processor.versions.model import ServedModel
from processor.versions.policy import ModelPolicy
from processor.versions.served_version import ServedVersion
from processor.watching.aftermath import TakeBack
from processor.watching.judge import Verdict
from tests.guarded import FAULTS, Stream, as_inputs, write_guarded
from tests.packages import connect

GOOD = 12


def opened(root, delta_guard=None, asked=True):
    """The model as a server opens it, asked for rows."""

    def load(reader):
        return ServedVersion(reader, 4, SystemClock())

    policy = ModelPolicy.parse({"delta_guard": delta_guard}, "model.small") if delta_guard else None
    model = ServedModel("small", Repository(root), load, connect, SystemClock(), policy=policy)
    model.poll()
    if asked:
        ask(model)
    return model


def ask(model):
    """Forty requests of eight rows."""
    replica = model.pick().replicas
    for seed in range(40):
        replica.sample.take(replica.plan.bind(as_inputs(8, seed)))


def drop(root, delta):
    write_delta(root / "small" / "1" / "deltas" / f"{delta.step}.safetensors", delta)


def as_bytes(tmp_path, delta):
    path = tmp_path / ".made"
    write_delta(path, delta)
    return path.read_bytes()


def chain(root):
    return Ledger.of(Repository(root).version("small", 1))


@pytest.fixture
def stream(tmp_path):
    write_guarded(tmp_path)
    return Stream()


def served(model):
    return str(model.pick().generation)


def feed(root, model, stream, count=GOOD):
    for _ in range(count):
        drop(root, stream.good())
        model.poll()


def test_two_hundred_good_deltas_are_served(tmp_path, stream):
    model = opened(tmp_path)
    feed(tmp_path, model, stream, 200)
    assert served(model) == "1.200"
    assert model.vigilance.held.total() == 0
    assert sum(model.vigilance.preview_s.counts) == 200


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_that_is_published_is_held_by_a_record(tmp_path, stream, fault):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault(fault))

    events = model.poll()

    assert served(model) == f"1.{GOOD}"
    assert any(f"small 1.{GOOD + 1} held: " in event for event in events)
    status = model.chain(1)
    assert status.state == "HELD"
    assert status.reason.startswith(f"1.{GOOD + 1} held: ")
    history = chain(tmp_path).history
    assert (history.head.step, history.target.step, history.held) == (GOOD + 1, GOOD, status.reason)
    assert model.poll() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_that_is_uploaded_is_refused_and_kept_behind_a_gate(tmp_path, stream, fault):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    data = as_bytes(tmp_path, stream.fault(fault))

    with pytest.raises(Conflict, match=f"delta: 1.{GOOD + 1} is held: .*; `freshet delta release` serves it"):
        model.apply_bytes(data)

    assert served(model) == f"1.{GOOD}"
    assert model.chain(1).state == "HELD"
    assert chain(tmp_path).history.target.step == GOOD
    with pytest.raises(Conflict, match="chain: HELD: "):
        model.apply_bytes(data)
    assert model.vigilance.held.total() == 1


@pytest.mark.parametrize("fault", ["zeroed", "swapped", "hundredfold"])
def test_without_any_request_rows_and_weights_that_have_moved_are_held(tmp_path, stream, fault):
    model = opened(tmp_path, asked=False)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault(fault))
    model.poll()
    assert served(model) == f"1.{GOOD}"
    assert model.chain(1).state == "HELD"


def test_what_is_released_is_served_everywhere_and_not_judged_again(tmp_path, stream):
    model, other = opened(tmp_path), opened(tmp_path)
    feed(tmp_path, model, stream)
    other.poll()
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    other.poll()
    assert served(other) == f"1.{GOOD}"

    reached = model.release(1, "a table that is not used")

    assert str(reached) == served(model) == f"1.{GOOD + 1}"
    assert model.chain(1).state == "CURRENT"
    other.poll()
    assert served(other) == f"1.{GOOD + 1}"
    assert other.vigilance.held.total() == 0
    with pytest.raises(Conflict, match="release: nothing of it is held"):
        model.release(1)


def test_what_is_rejected_is_undone_everywhere_and_its_step_not_used_again(tmp_path, stream):
    model, other = opened(tmp_path), opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()

    done = model.reject(1, "indeed")

    assert [str(one) for one in done.undone] == [f"1.{GOOD + 1}"]
    assert (str(done.generation), done.next_step, done.recorded) == (f"1.{GOOD}", GOOD + 2, True)
    assert model.chain(1).state == "CURRENT"
    other.poll()
    assert (served(other), other.chain(1).state) == (f"1.{GOOD}", "CURRENT")
    with pytest.raises(Conflict, match="reject: nothing of it is held"):
        model.reject(1)


def test_deltas_that_follow_what_is_held_wait_with_it(tmp_path, stream):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    stream.good()
    chain(tmp_path).publish(stream.good())
    model.poll()
    assert (served(model), model.chain(1).behind) == (f"1.{GOOD}", 2)
    model.release(1)
    assert served(model) == f"1.{GOOD + 2}"


def test_a_server_that_starts_on_a_chain_that_is_held_serves_what_comes_before(tmp_path, stream):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    started = opened(tmp_path, asked=False)
    assert (served(started), started.chain(1).state) == (f"1.{GOOD}", "HELD")


def test_a_start_judges_nothing_that_others_have_served(tmp_path, stream):
    model = opened(tmp_path, delta_guard={"mode": "off"})
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    assert served(model) == f"1.{GOOD + 1}"
    assert served(opened(tmp_path)) == f"1.{GOOD + 1}"


def test_a_long_run_that_is_caught_up_with_is_not_judged(tmp_path, stream):
    model, late = opened(tmp_path), opened(tmp_path)
    feed(tmp_path, model, stream, GOOD)
    for _ in range(10):
        drop(tmp_path, stream.good())
    drop(tmp_path, stream.fault("zeroed"))
    unguarded = opened(tmp_path, delta_guard={"mode": "off"})
    assert served(unguarded) == f"1.{GOOD + 11}"
    late.poll()
    assert served(late) == f"1.{GOOD + 11}"


def test_where_nothing_can_be_written_it_is_held_in_memory_and_says_so(tmp_path, stream, monkeypatch):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    opened(tmp_path, delta_guard={"mode": "off"})

    def refuse(*_, **__):
        raise OSError(30, "read-only")

    monkeypatch.setattr("processor.package.place.exclusive_file", refuse)
    model.poll()
    assert served(model) == f"1.{GOOD}"
    assert model.chain(1).state == "HELD"
    assert model.chain(1).reason.endswith("; on this server alone, which cannot write to the repository")
    model.poll()
    assert served(model) == f"1.{GOOD}"
    model.release(1)
    assert served(model) == f"1.{GOOD + 1}"


def test_off_holds_nothing(tmp_path, stream):
    model = opened(tmp_path, delta_guard={"mode": "off"})
    feed(tmp_path, model, stream)
    for step, fault in enumerate(FAULTS):
        drop(tmp_path, stream.fault(fault))
        model.poll()
        assert served(model) == f"1.{GOOD + 1 + step}"
        stream.good()


def test_strict_scores_every_row_that_there_is(tmp_path, stream):
    model = opened(tmp_path, delta_guard={"mode": "strict"}, asked=False)
    replica = model.pick().replicas
    feed(tmp_path, model, stream, 1)
    for seed in range(100):
        replica.sample.take(replica.plan.bind(as_inputs(8, seed)))
    feed(tmp_path, model, stream, 1)
    looked = []
    preview = replica.preview
    replica.preview = lambda *args: looked.append(preview(*args)) or looked[-1]
    feed(tmp_path, model, stream, 1)
    assert looked[0].rows == 800


def test_a_preview_that_fails_costs_the_delta_nothing(tmp_path, stream):
    model = opened(tmp_path)
    replica = model.pick().replicas
    replica.preview = lambda *_: 1 / 0
    feed(tmp_path, model, stream, 2)
    assert served(model) == "1.2"


def test_what_is_served_and_turns_out_to_be_bad_is_taken_back_once(tmp_path, stream):
    model, other = opened(tmp_path), opened(tmp_path)
    feed(tmp_path, model, stream)
    other.poll()
    digests = {link.step: link.digest for link in chain(tmp_path).history.line()}
    bad, good = (Generation(1, step, digests[step]) for step in (GOOD, GOOD - 1))
    verdict = TakeBack(bad, good, Verdict("shift", "scores have shifted"))

    (event,) = model.take_back(verdict)

    assert served(model) == f"1.{GOOD - 1}"
    assert event.endswith("taken back by itself: shift: scores have shifted")
    assert other.take_back(verdict) == []
    assert served(other) == f"1.{GOOD - 1}"
    kinds = [record.kind for record in chain(tmp_path).records()]
    assert kinds.count("rollback") == 1
    assert dict(model.vigilance.taken_back) == {"shift": 1}


def test_an_upload_that_could_not_be_kept_either_is_refused_and_recorded_nowhere(tmp_path, stream, monkeypatch):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    data = as_bytes(tmp_path, stream.fault("zeroed"))

    def refuse(*_):
        raise NotReady("delta: the repository cannot be written")

    monkeypatch.setattr(Ledger, "keep", refuse)
    with pytest.raises(Conflict, match="of 'score' would move"):
        model.apply_bytes(data)
    assert (served(model), model.chain(1).state) == (f"1.{GOOD}", "CURRENT")
    assert chain(tmp_path).history.number == GOOD
