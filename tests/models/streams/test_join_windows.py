"""Sums of windows, and their lines, one each however often they are written."""

import json

import numpy as np
import pytest

from freshet_serving.models.streams.join_windows import JoinWindows, newest_lines, read_lines, write_lines
from freshet_serving.processor.errors import Corrupt


def windows():
    made = JoinWindows(10.0)
    times = np.array([1.0, 2.0, 11.0])
    made.add(times, rows=np.ones(3), positives=np.array([1.0, 0, 0]), scores=np.full(3, 0.25), weights=np.ones(3))
    return made


def test_figures_cover_only_their_window():
    first, second = windows().lines(0.5, 10.0)
    assert (first["window"], first["rows"], first["positives"], first["complete"]) == (0, 2, 1.0, True)
    assert (first["mean_label"], first["expected_label"], first["calibration"]) == (0.5, 1.0, 0.5)
    assert (second["rows"], second["calibration"], second["complete"]) == (1, None, False)


def test_open_window_is_judged_by_the_expected_labels():
    first, _ = windows().lines(0.5, 0.0)
    assert first["calibration"] == 0.25


def test_window_has_one_line(tmp_path):
    made = windows()
    write_lines(tmp_path / "w", made.lines(0.0, 0.0))
    made.add(np.array([3.0, 86400.0]), late=np.ones(2), weights=np.ones(2))
    made.forget(15.0)
    write_lines(tmp_path / "w", made.lines(0.0, 0.0))
    assert [path.name for path in sorted((tmp_path / "w").iterdir())] == ["1970-01-01.jsonl", "1970-01-02.jsonl"]
    first_day = read_lines(tmp_path / "w" / "1970-01-01.jsonl")
    assert [(line["window"], line["late"]) for line in first_day] == [(0, 0), (10, 0)]
    assert [line["window"] for line in newest_lines(tmp_path / "w", 2)] == [10, 86400]
    assert newest_lines(tmp_path / "none", 2) == []


def test_windows_continue_from_their_saved_state():
    made = windows()
    assert JoinWindows(10.0, made.to_json()).lines(0.0, 0.0) == made.lines(0.0, 0.0)
    with pytest.raises(Corrupt, match="windows"):
        JoinWindows(10.0, {"0": {"nothing": 1}})


@pytest.mark.parametrize(
    "said", [[1], {"0": 1}, {"x": {}}, {"0": {"rows": "1"}}, {"0": {"scores": None}}, {"0": {"nothing": 1}}]
)
def test_invalid_window_sums_are_refused(said):
    with pytest.raises(Corrupt, match="windows"):
        JoinWindows(10.0, said)


def test_foreign_lines_are_ignored(tmp_path):
    (line,) = JoinWindows(10.0, {"0": {"rows": 1}}).lines(0.0, 0.0)
    others = [b"{", b"\xff", b"[" * 100_000, b"[]", b'{"window": 0}', json.dumps({**line, "window": "x"}).encode()]
    (tmp_path / "1970-01-01.jsonl").write_bytes(b"\n".join([*others, json.dumps(line).encode()]))
    assert read_lines(tmp_path / "1970-01-01.jsonl") == [line]
