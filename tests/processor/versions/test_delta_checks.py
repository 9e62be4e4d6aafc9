"""What became of the newest deltas: so many, the newest entry of each."""

from freshet_serving.processor.versions.delta_checks import MOST_ENTRIES, DeltaEntry, DeltaLog
from freshet_serving.processor.watching import IN_LINE, REPLAYED


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
