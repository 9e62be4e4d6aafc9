"""The start of this process, as the system has recorded it."""

import os
import time

import pytest

from freshet_serving.processor.clock import process_start_s


def test_start_lies_before_now_and_after_the_machine_s():
    assert 0 <= process_start_s() <= time.monotonic()


def test_start_is_the_recorded_tick(tmp_path):
    stat = tmp_path / "stat"
    fields = ["S", *["0"] * 18, str(5 * os.sysconf("SC_CLK_TCK")), "0"]
    stat.write_text(f"1 (a ) b) {' '.join(fields)}")
    suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    assert process_start_s(stat) == pytest.approx(5 - suspended_s, abs=1)


@pytest.mark.parametrize("text", ["", "1 (python) S 1", "1 (python) S " + "x " * 30])
def test_unreadable_record_counts_from_now(tmp_path, text):
    stat = tmp_path / "stat"
    stat.write_text(text)
    before_s = time.monotonic()
    assert before_s <= process_start_s(stat) <= time.monotonic()
    assert before_s <= process_start_s(tmp_path / "missing") <= time.monotonic()
