"""The timeline of a version: what was published, what became of it here, what was undone and what waits."""

import json

import pytest

from freshet_serving.processor.errors import Corrupt, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import rows_of_file, write_delta
from freshet_serving.processor.versions.timeline import MOST, score_shift
from freshet_serving.processor.watching import Figure
from tests.processor.extensions.guard.fed import drop, feed, opened
from tests.support.guarded import Stream, write_guarded
from tests.support.packages import make_delta, write_package


@pytest.fixture
def model(tmp_path):
    write_package(tmp_path)
    return opened(tmp_path, asked=False)


def shown(model, most=MOST):
    return [(e["kind"], e["generation"], e.get("state")) for e in model.timeline(1, most)["entries"]]


def test_version_without_deltas_has_no_entries(model):
    told = model.timeline(1, MOST)
    assert (told["generation"], told["first"], told["gate"], told["entries"]) == ("1.0", "1.0", None, [])
    with pytest.raises(NotFound, match="version 2"):
        model.timeline(2, MOST)


def test_entry_shows_what_a_delta_changed_and_its_duration(model, tmp_path):
    drop(tmp_path, make_delta(1, [1, 2, 3], [4], dense_seed=1))
    model.poll()
    (entry,) = model.timeline(1, MOST)["entries"]
    here = entry["here"]
    assert (entry["state"], entry["parent"], entry["in_memory"]) == ("current", "1.0", True)
    assert (here["rows"], here["removed"], here["dense"] > 0, here["verdict"]) == (3, 1, True, "in line")
    assert here["apply_ms"] > 0
    assert here["age_s"] >= 0
    assert entry["nbytes"] > 0


def test_rollback_is_an_entry_and_undone_entries_say_so(model, tmp_path):
    for step in (1, 2, 3):
        drop(tmp_path, make_delta(step, [step]))
        model.poll()
    model.rollback(Generation(1, 1), "late labels")
    assert shown(model) == [
        ("rollback", "1.1", None),
        ("delta", "1.3", "undone"),
        ("delta", "1.2", "undone"),
        ("delta", "1.1", "current"),
    ]
    assert model.timeline(1, MOST)["entries"][0]["reason"] == "late labels"
    drop(tmp_path, make_delta(4, [9], parent=1))
    model.poll()
    assert shown(model, most=2) == [("delta", "1.4", "current"), ("rollback", "1.1", None)]
    assert shown(model)[-1] == ("delta", "1.1", "served")


def test_start_marks_its_deltas_as_replayed(model, tmp_path):
    for step in range(1, 41):
        drop(tmp_path, make_delta(step, [step]))
    model.poll()
    again = opened(tmp_path, asked=False)
    verdicts = [e["here"]["verdict"] for e in again.timeline(1, MOST)["entries"]]
    assert verdicts.count("replayed") == 8
    assert len(verdicts) == 40


def test_held_delta_is_shown_with_its_reason(tmp_path):
    write_guarded(tmp_path)
    stream = Stream()
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    good = model.timeline(1, MOST)["entries"][0]
    assert (good["state"], good["here"]["verdict"]) == ("current", "in line")
    assert good["here"]["score_shift"] >= 0
    assert {"kind", "what", "value"} == json.loads(json.dumps(good))["here"]["figures"][0].keys()
    drop(tmp_path, stream.fault("hundredfold"))
    model.poll()
    told = model.timeline(1, MOST)
    delta = next(e for e in told["entries"] if e["kind"] == "delta")
    assert told["chain"]["state"] == "HELD"
    assert told["gate"] == told["generation"] == good["generation"]
    assert (delta["state"], delta["here"]["verdict"]) == ("waits", "out of line")
    assert delta["rows"] == delta["here"]["rows"] > 0
    assert delta["here"]["reason"]
    assert "hold" in [e["kind"] for e in told["entries"]]
    model.reject(1, "bad")
    assert shown(model)[0][0] == "rollback"
    assert ("delta", delta["generation"], "undone") in shown(model)


def test_rows_are_counted_from_the_header_and_broken_files_refused(tmp_path):
    path = tmp_path / "1.safetensors"
    write_delta(path, make_delta(1, [1, 2, 3], [4], tags=["a"]))
    assert rows_of_file(path) == 4
    for data in (b"", b"PAR1", path.read_bytes()[:40], (10**12).to_bytes(8, "little") + b"{"):
        path.write_bytes(data)
        with pytest.raises(Corrupt, match=r"1\.safetensors: expected a delta header"):
            rows_of_file(path)


def test_score_shift_is_that_of_the_output_that_moved_furthest():
    figures = [Figure("bias", "click", 0.01), Figure("bias", "buy", 0.03), Figure("spread", "click", 0.9)]
    assert score_shift(figures) == 0.03
    assert score_shift(figures[2:]) is None
