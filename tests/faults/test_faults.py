"""The harness can fail: a mixed reply, a lost generation, an unexcused loss are found. And it runs."""

import numpy as np
import pytest

from freshet_serving.processor.repository.log.chain_record import record_name
from tests.faults import siege
from tests.faults.__main__ import campaign
from tests.faults.field import SETUPS, Field
from tests.faults.injections import INJECTIONS
from tests.faults.load import Asker, Excuses, Refused, Tally
from tests.faults.page import NEVER, Outcome, page
from tests.faults.truth import QUESTIONS, TOLERANCE, Change, Truth, full_state


@pytest.fixture
def truth():
    truth, state = Truth(), full_state(1)
    truth.know("1.0", state)
    for step in range(1, 6):
        state = Change(1, step).after(state)
        truth.know(f"1.{step}", state)
    return truth


def test_consecutive_generations_differ_for_nearly_every_request(truth):
    for step in range(5):
        states = truth.state(f"1.{step}"), truth.state(f"1.{step + 1}")
        moved = [np.abs(states[0].scores(q) - states[1].scores(q)).max() > 10 * TOLERANCE for q in QUESTIONS]
        assert sum(moved) >= 0.7 * len(QUESTIONS)


def test_reply_mixing_two_generations_is_detected(truth):
    detected = 0
    for n, question in enumerate(QUESTIONS):
        old, new = truth.state("1.4").scores(question), truth.state("1.5").scores(question)
        assert truth.fault("1.5", n, new) == ""
        mixed = np.where(np.arange(len(new)) % 2, old, new)
        detected += bool(truth.fault("1.5", n, mixed)) == bool(np.abs(mixed - new).max() > TOLERANCE)
        assert truth.fault("1.9", n, new).startswith("generation '1.9'")
        assert truth.fault("1.5", n, new[1:]).startswith("24 scores wanted")
        assert truth.fault("1.5", n, np.full_like(new, np.nan)) != ""
    assert detected == len(QUESTIONS)


def test_twice_attempted_generation_may_have_either_content(truth):
    first, second = truth.state("1.5"), Change(1, 5).after(truth.state("1.2"))
    truth.know("1.5", second)
    question = QUESTIONS[0]
    assert truth.fault("1.5", 0, first.scores(question)) == truth.fault("1.5", 0, second.scores(question)) == ""


class Side:
    """Answers as it is told, then stops its asker."""

    def __init__(self, answers):
        self.answers, self.asker = list(answers), None

    def ask(self, server, number):
        answer = self.answers.pop(0)
        if not self.answers:
            self.asker.stopped.set()
        if isinstance(answer, Exception):
            raise answer
        return answer(number)

    def close(self):
        pass


def asked(truth, answers, excuses=None):
    tally, side = Tally(), Side(answers)
    side.asker = Asker(side, lambda: object(), truth, excuses or Excuses(), tally, 0)
    side.asker.run()
    return tally.counts


def test_wrong_replies_and_losses_are_distinguished(truth):
    right = truth.state("1.3")
    answers = [
        lambda n: ("1.3", right.scores(QUESTIONS[n])),
        lambda n: ("1.3", right.scores(QUESTIONS[n]) + 0.01),
        ConnectionResetError(),
        Refused("503 draining"),
        Refused("429 queue"),
    ]

    counts = asked(truth, answers)

    assert counts == {"checked": 1, "wrong": 1, "lost reply": 1, "refused": 1, "shed": 1}


def test_only_concurrent_faults_excuse_an_error(truth):
    excuses = Excuses()
    with excuses.span("a full disk", requests=False):
        assert asked(truth, [ConnectionResetError()], excuses) == {"lost reply": 1}
        assert excuses.excused(0, 1e18, request=False) == "a full disk"
    with excuses.span("kill -9"):
        counts = asked(truth, [ConnectionResetError(), lambda n: ("1.3", np.zeros(24))], excuses)
    assert counts == {"lost reply, excused": 1, "lost reply by kill -9": 1, "wrong": 1}
    assert asked(truth, [ConnectionResetError()], excuses) == {"lost reply": 1}


def test_every_fault_has_a_line_in_the_report():
    outcome = Outcome("default", 60.0)
    outcome.counts.update(kind for kinds in NEVER.values() for kind in kinds)
    outcome.done["a full disk"] = 3
    outcome.faults.append("wrong: the scores are not those of 1.3")
    text = page([outcome], 1, "make faults")
    assert "| wrong or mixed replies | 2 |" in text
    assert "| a full disk | 3 |" in text
    assert "- default: wrong: the scores" in text


def test_interrupted_siege_keeps_its_finished_measurements(tmp_path, monkeypatch):
    def measured(names, rounds):
        yield "default, 1 attacker", ([], 0, 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(siege, "measured", measured)
    monkeypatch.setattr("sys.argv", ["siege", "--out", str(tmp_path)])

    with pytest.raises(KeyboardInterrupt):
        siege.main()

    assert "## default, 1 attacker: 0 workers lost" in (tmp_path / "siege.md").read_text()


@pytest.mark.long
@pytest.mark.e2e
def test_short_campaign_on_a_live_server_finds_no_fault(tmp_path):
    kinds = [k for k in INJECTIONS if k.run.__name__ in ("bad_upload", "bad_file", "slow_file", "torn_file", "stop")]

    outcome = campaign(SETUPS["one process"], 60.0, 1, tmp_path, kinds, most=6)

    assert outcome.faults == []
    assert outcome.counts["checked"] > 0
    assert outcome.done.total() == 6


@pytest.mark.e2e
def test_lost_acknowledged_generation_is_detected(tmp_path):
    class Absent(Field):
        def start(self, number):
            pass

    with Absent(tmp_path, SETUPS["one process"], 1) as field:
        field.committer.stopped.set()
        field.committer.join()
        change_log = field.committer.change_log()
        link = change_log.publish(Change(1, change_log.history.top + 1).delta(change_log.history.head.step))
        field.committer.acknowledged.add((1, link.step, link.digest))
        assert field.committer.lost() == []
        for name in (record_name(change_log.history.number), link.record.file):
            (change_log.folder / name).unlink()
        assert field.committer.lost() == [(1, link.step, link.digest)]
