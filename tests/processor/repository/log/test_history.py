"""The records folded: which come next, what is served, and that no step ever names two contents."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package.whole_files import sha256
from freshet_serving.processor.repository.log.chain_record import (
    DELTA,
    HOLD,
    RELEASE,
    ROLLBACK,
    SNAPSHOT,
    ChainRecord,
    delta_digest,
)
from freshet_serving.processor.repository.log.history import ChainLink, History

ROOT, ZERO = "ab" * 32, "cd" * 16


def start():
    return History("small", 1, ROOT, ZERO)


def file_of(content):
    return sha256(str(content).encode())


def delta(history, content, step=None, head=None):
    head = head or history.head
    digest = delta_digest(head.digest, file_of(content))
    link = ChainLink(history.top + 1 if step is None else step, digest, head.digest)
    fields = dict(file=f"deltas/{link.step}.safetensors", sha256=file_of(content), nbytes=1)
    return history.next(DELTA, link, parent_step=head.step, parent=head.digest, **fields)


def take(history, record):
    history.check_next(record)
    history.take(record, sha256(record.to_bytes()))


def snapshot(history, link):
    fields = dict(file="snapshots/1-aa/snapshot.json", sha256=file_of("s"), nbytes=1)
    return history.next(SNAPSHOT, link, since=link.record.number, **fields)


def grown(steps):
    history = start()
    for step in range(1, steps + 1):
        take(history, delta(history, step))
    return history


def test_line_grows_with_deltas_and_shrinks_with_a_rollback():
    history = grown(7)
    take(history, history.next(ROLLBACK, history.on_line(4)))
    assert [link.step for link in history.line()] == [0, 1, 2, 3, 4]
    assert [link.step for link in history.undone()] == [5, 6, 7]
    take(history, delta(history, "new"))
    assert (history.head.step, history.head.record.parent_step, history.top) == (8, 4, 8)
    assert [link.step for link in history.line()] == [0, 1, 2, 3, 4, 8]
    assert history.on_line(5) is None
    assert history.known(5).step == 5


def test_undone_delta_may_return_as_the_same_generation():
    history = grown(5)
    digest = history.head.digest
    take(history, history.next(ROLLBACK, history.on_line(3)))
    for content in (4, 5):
        take(history, delta(history, content, step=content))
    assert (history.head.step, history.head.digest, history.top) == (5, digest, 5)


@pytest.mark.parametrize("step", [1, 4, 5])
def test_step_is_never_reused_for_different_content(step):
    history = grown(5)
    take(history, history.next(ROLLBACK, history.on_line(0)))
    record = delta(history, "other", step=step)
    with pytest.raises(Conflict, match=f"step {step} is already used; the next one is 6"):
        history.check_next(record)


def test_hold_stops_serving_until_it_is_released():
    history = grown(2)
    take(history, history.next(HOLD, history.head, reason="AUC fell"))
    take(history, delta(history, 3))
    assert (history.target.step, history.head.step, history.held) == (2, 3, "AUC fell")
    with pytest.raises(Conflict, match="the change log is held"):
        take(history, history.next(HOLD, history.head))
    take(history, history.next(RELEASE, history.head))
    assert (history.target.step, history.held) == (3, "")
    with pytest.raises(Conflict, match="the change log is not held"):
        take(history, history.next(RELEASE, history.head))


def test_hold_may_move_back_but_not_forward():
    history = grown(5)
    take(history, history.next(HOLD, history.on_line(3), reason="1.4 held"))
    assert (history.target.step, history.head.step, history.held) == (3, 5, "1.4 held")
    take(history, delta(history, 6))
    assert history.target.step == 3
    take(history, history.next(HOLD, history.on_line(2), reason="1.3 held"))
    assert (history.target.step, history.held) == (2, "1.3 held")
    for step in (2, 4):
        with pytest.raises(Conflict, match="the change log is held"):
            history.check_next(history.next(HOLD, history.on_line(step)))


def test_hold_of_an_undone_step_is_refused():
    history = grown(3)
    undone = history.head
    take(history, history.next(ROLLBACK, history.on_line(1)))
    with pytest.raises(Conflict, match="hold of step 3, which is not on the current line"):
        history.check_next(history.next(HOLD, undone))


def test_release_approves_deltas_up_to_the_head():
    history = grown(3)
    take(history, history.next(HOLD, history.on_line(2)))
    assert history.vouched == 0
    take(history, history.next(RELEASE, history.head))
    assert history.vouched == 3
    take(history, delta(history, 4))
    assert history.vouched == 3


@pytest.mark.parametrize(("back", "held"), [(3, True), (2, False), (1, False)])
def test_rollback_to_a_hold_or_before_it_releases_it(back, held):
    history = grown(2)
    take(history, history.next(HOLD, history.head))
    for content in (3, 4):
        take(history, delta(history, content))
    take(history, history.next(ROLLBACK, history.on_line(back)))
    assert (history.gate is not None) is held
    assert history.target.step == min(back, 2)


def test_reader_begins_at_the_newest_snapshot_on_the_line():
    history = grown(6)
    for step in (2, 5):
        take(history, snapshot(history, history.on_line(step)))
    assert history.snapshot().step == 5
    assert history.snapshot(history.on_line(4)).step == 2
    assert history.snapshot(history.on_line(1)) is None
    record = delta(history, 7)
    assert record.snapshot == 8
    take(history, history.next(ROLLBACK, history.on_line(3)))
    assert history.snapshot().step == 2
    assert delta(history, "new").snapshot == 7
    take(history, history.next(ROLLBACK, history.on_line(0)))
    assert delta(history, "newer").snapshot == 0


def test_history_since_a_snapshot_accepts_records_naming_an_older_one():
    whole, records = start(), []

    def write(record):
        records.append(record)
        take(whole, record)

    write(delta(whole, 1))
    write(snapshot(whole, whole.head))
    write(delta(whole, 2))
    reached = records[-1]
    write(delta(whole, 3))
    write(snapshot(whole, whole.head))
    write(whole.next(ROLLBACK, whole.on_line(2)))
    assert records[-1].snapshot == 2
    write(snapshot(whole, whole.on_line(2)))
    part = History.since(reached, sha256(reached.to_bytes()), records[-1])
    for record in records[3:]:
        take(part, record)
    assert part.newest == whole.newest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(model="other"), "not for this change log"),
        (dict(version=2), "not for this change log"),
        (dict(number=4), "does not continue record 2"),
        (dict(previous="00" * 32), "does not continue record 2"),
        (dict(parent_step=1), "continues step 1"),
        (dict(parent="00" * 16), "continues step 2"),
        (dict(digest="00" * 16), "its digest does not match"),
        (dict(sha256="00" * 32), "its digest does not match"),
        (dict(top=9), "top: expected 3, got 9"),
        (dict(step=2, top=2), "not ahead"),
        (dict(kind=ROLLBACK), "which is not on the current line"),
        (dict(snapshot=10**9), "names record 1000000000 as its snapshot, which is not a snapshot"),
        (dict(snapshot=3), "names record 3 as its snapshot, which is not a snapshot"),
    ],
)
def test_record_that_breaks_a_rule_is_refused(change, message):
    history = grown(2)
    record = dataclasses.replace(delta(history, 3), **change)
    with pytest.raises(Conflict, match=message):
        history.check_next(record)


class Chains(RuleBasedStateMachine):
    """Random records, taken by one history all along and by another that reads their bytes anew."""

    @initialize()
    def begin(self):
        self.history, self.records, self.said = start(), [], {0: ZERO}
        self.count = 0

    def write(self, record):
        take(self.history, record)
        self.records.append(record.to_bytes())

    @rule()
    def publish(self):
        self.count += 1
        self.write(delta(self.history, f"content {self.count}"))

    @rule(data=st.data())
    def roll_back(self, data):
        line = list(self.history.back(self.history.head))
        if len(line) > 1:
            self.write(self.history.next(ROLLBACK, data.draw(st.sampled_from(line[1:]))))

    @rule(data=st.data())
    def apply_again(self, data):
        head = self.history.head
        again = [link for link in self.history.undone() if link.parent == head.digest and link.step > head.step]
        if again:
            link = data.draw(st.sampled_from(again))
            old = link.record
            fields = dict(file=old.file, sha256=old.sha256, nbytes=old.nbytes)
            self.write(self.history.next(DELTA, ChainLink(link.step, link.digest, head.digest), **fields))

    @rule()
    def gate(self):
        kind = RELEASE if self.history.gate else HOLD
        self.write(self.history.next(kind, self.history.head))

    @rule(data=st.data())
    def gate_before(self, data):
        before = list(self.history.back(self.history.target))
        before = before[1:] if self.history.gate else before
        if before:
            self.write(self.history.next(HOLD, data.draw(st.sampled_from(before))))

    @precondition(lambda self: self.history.target.record is not None)
    @rule(data=st.data())
    def fold(self, data):
        line = [link for link in self.history.line() if link.record is not None]
        self.write(snapshot(self.history, data.draw(st.sampled_from(line))))

    @invariant()
    def every_step_has_one_digest(self):
        for link in self.history.links.values():
            assert self.said.setdefault(link.step, link.digest) == link.digest

    @invariant()
    def what_is_served_is_on_the_line(self):
        line = [link.digest for link in self.history.back(self.history.head)]
        assert self.history.target.digest in line
        assert self.history.top >= self.history.head.step >= self.history.target.step

    @invariant()
    def who_reads_the_bytes_comes_to_the_same(self):
        other = start()
        for number, data in enumerate(self.records, start=1):
            record = ChainRecord.from_bytes(data, number)
            other.check_next(record)
            other.take(record, sha256(data))
        assert (other.target, other.head, other.top, other.newest) == (
            self.history.target, self.history.head, self.history.top, self.history.newest,
        )  # fmt: skip

    @invariant()
    def who_begins_at_the_snapshot_comes_to_the_same(self):
        if not self.records:
            return
        newest = ChainRecord.from_bytes(self.records[-1], len(self.records))
        if not newest.snapshot:
            return
        made = ChainRecord.from_bytes(self.records[newest.snapshot - 1], newest.snapshot)
        reached = ChainRecord.from_bytes(self.records[made.since - 1], made.since)
        part = History.since(reached, sha256(self.records[made.since - 1]), made)
        for number in range(made.since + 1, len(self.records) + 1):
            record = ChainRecord.from_bytes(self.records[number - 1], number)
            if record.kind in (ROLLBACK, HOLD) and record.step < part.base.step:
                return
            part.check_next(record)
            part.take(record, sha256(self.records[number - 1]))
        assert (part.target.digest, part.head.digest, part.top) == (
            self.history.target.digest, self.history.head.digest, self.history.top,
        )  # fmt: skip


Chains.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestChains = Chains.TestCase
