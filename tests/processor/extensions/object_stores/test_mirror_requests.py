"""How often a server polls a store, and what a month of it costs in requests, by the mirror's own intervals."""

import re
from collections import Counter
from pathlib import Path

import pytest

from freshet_serving.processor.extensions.object_stores.mirror import BEAT_S, LONGEST_BEAT_S, QUIET_SHARE
from tests.processor.extensions.object_stores.sides import Server, opened, publish
from tests.support.packages import make_delta

PAGE = Path(__file__).parents[4] / "docs" / "extensions" / "object_stores.md"
MONTH_S = 30 * 86400


@pytest.fixture
def server(bucket, trainer, tmp_path):
    server = Server(bucket, tmp_path / "server")
    server.change_log = server.load()
    server.beat()
    return server


def quiet(server, seconds):
    """Beats of a time in which nothing changes, beside the watcher that reads the log."""
    until_s = server.clock.now_s() + seconds
    while server.clock.now_s() < until_s:
        server.change_log.look()
        server.beat(server.mirror.pause_s())


def test_polls_are_frequent_while_something_changes(trainer, server):
    for step in range(1, 4):
        trainer.publish(make_delta(step, [1]))
        quiet(server, 10.0)
        assert server.mirror.pause_s() == BEAT_S


def test_quiet_store_is_polled_within_a_hundredth_of_the_pause(server):
    quiet(server, 100.0)
    assert server.mirror.pause_s() == pytest.approx(1.0, rel=0.02)
    quiet(server, 86400.0 / 24)
    assert server.mirror.pause_s() == LONGEST_BEAT_S


def test_record_hint_and_new_version_make_polls_frequent_again(bucket, trainer, server, tmp_path):
    quiet(server, 300.0)
    trainer.publish(make_delta(1, [1]))
    server.beat(server.mirror.pause_s())
    assert server.mirror.pause_s() == BEAT_S
    quiet(server, 300.0)
    opened(bucket, tmp_path / "other").keep_labels("small", {"stable": 1})
    server.beat(server.mirror.pause_s())
    assert server.mirror.pause_s() == BEAT_S
    publish(opened(bucket, tmp_path / "other"), tmp_path, version=2)
    quiet(server, 300.0)
    server.mirror.prepare("small", 2)
    server.beat(server.mirror.pause_s())
    assert server.mirror.pause_s() == BEAT_S


def test_trainer_report_does_not_make_polls_frequent(bucket, server, tmp_path):
    quiet(server, 300.0)
    opened(bucket, tmp_path / "other").keep_trainer("small", b"one")
    quiet(server, 60.0)
    assert server.mirror.pause_s() == LONGEST_BEAT_S


def test_staleness_of_a_quiet_store_stays_within_a_poll(server):
    quiet(server, 600.0)
    server.clock.advance(server.mirror.pause_s())
    assert server.mirror.seen_s() <= LONGEST_BEAT_S


def a_month(bucket, seconds):
    """Requests of a month by kind, in millions, as those of so many seconds."""
    names = {"folders": "LIST", "get": "GET", "head": "GET", "download": "GET"}
    kinds = Counter(names[call] for call, _ in bucket.calls if call in names)
    return {kind: count / seconds * MONTH_S / 1e6 for kind, count in kinds.items()}


def test_page_has_the_requests_of_a_month(bucket, trainer, server):
    bucket.calls.clear()
    for step in range(1, 15):
        trainer.publish(make_delta(step, [1]))
        quiet(server, BEAT_S / QUIET_SHARE)
    busy = a_month(bucket, 14 * BEAT_S / QUIET_SHARE)
    quiet(server, 600.0)
    bucket.calls.clear()
    quiet(server, 1200.0)
    idle = a_month(bucket, 1200.0)
    rows = re.findall(r"^\| one replica, one version, (.+?) \| ([\d.]+) \| ([\d.]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == ["deltas at least every 25 s", "nothing changes"]
    for (_, gets, lists), measured in zip(rows, (busy, idle)):
        assert (float(gets), float(lists)) == pytest.approx((measured["GET"], measured["LIST"]), rel=0.1)
