"""What became of the newest deltas: so many, the newest entry of each."""

from freshet_serving.processor.watching import IN_LINE, REPLAYED, DeltaEntry, DeltaLog, Figure, score_shift
from freshet_serving.processor.watching.delta_log import MOST_ENTRIES


def entry(digest, verdict=IN_LINE, **more):
    return DeltaEntry(digest, 5, 1, 0, 0, verdict, **more)


def test_log_keeps_the_newest_entries():
    log = DeltaLog()
    for n in range(MOST_ENTRIES + 3):
        log.add(entry(str(n)))
    assert len(log) == MOST_ENTRIES
    assert next(iter(log.entries())) == "3"
    assert list(log.entries())[-1] == str(MOST_ENTRIES + 2)


def test_newer_entry_replaces_one_of_the_same_delta():
    log = DeltaLog()
    log.add(entry("a"))
    log.add(entry("a", REPLAYED))
    assert {digest: e.verdict for digest, e in log.entries().items()} == {"a": REPLAYED}


def test_score_shift_is_that_of_the_output_that_moved_furthest():
    figures = [Figure("bias", "click", 0.01), Figure("bias", "buy", 0.03), Figure("spread", "click", 0.9)]
    assert score_shift(figures) == 0.03
    assert score_shift(figures[2:]) is None
