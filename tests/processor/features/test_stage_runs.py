"""Runs of a stage: refused by shape, in pieces of bounded size, within the time of their request."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import TooLarge
from freshet_serving.processor.features import stage_runs
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.stage_runs import StageRuns
from freshet_serving.processor.package import GrowthTerm, StageGrowth
from tests.processor.features.test_stage_rows import manifest

PAIRS = StageGrowth([GrowthTerm(1, 2, 1.0)])


class Copies:
    """Sums of lists beside the words as they are; notes the rows of each run."""

    reads = ("past", "word")

    def __init__(self):
        self.calls = []

    def run(self, inputs, rows):
        self.calls.append(rows)
        past = inputs["past"]
        sums = np.add.reduceat(np.append(past.values, 0), past.row_splits[:-1]).astype(np.float32)
        return {"sum": np.resize(sums, rows), "word": inputs["word"], "list": past}


def requested(rows, length=3):
    values = np.arange(rows * length, dtype=np.int64)
    return {
        "past": Ragged(values, np.arange(rows + 1, dtype=np.int64) * length),
        "word": Strings.of([f"w{n}" for n in range(rows)]),
        "price": np.zeros(rows, np.float32),
    }


def test_pieces_give_what_one_run_gives(monkeypatch):
    inputs, stage = requested(10), Copies()
    whole = StageRuns(manifest(), stage, PAIRS).run(inputs, 10, None)
    monkeypatch.setattr(stage_runs, "AT_ONCE", 4 * 9)
    pieces = StageRuns(manifest(), stage, PAIRS).run(inputs, 10, None)
    assert stage.calls == [10, 4, 4, 2]
    np.testing.assert_array_equal(pieces["sum"], whole["sum"])
    assert pieces["word"].tolist() == whole["word"].tolist()
    assert pieces["list"].values.tolist() == whole["list"].values.tolist()
    assert pieces["list"].row_splits.tolist() == whole["list"].row_splits.tolist()


def test_rows_of_a_matrix_of_strings_stay_together():
    inputs = {"word": Strings.of(["a", "b", "c", "d", "e", "f"]), "past": requested(3)["past"]}
    described = manifest()
    words = [replace(entry, columns=2) if entry.name == "word" else entry for entry in described.inputs]
    runs = StageRuns(replace(described, inputs=words), Copies(), PAIRS)
    assert runs.count("word", inputs["word"]) == 3
    assert runs.part(inputs, 1, 2, 3)["word"].tolist() == [b"c", b"d", b"e", b"f"]


def test_what_all_rows_share_is_computed_once():
    stage = Copies()
    inputs = {**requested(1), "price": np.zeros(5, np.float32)}
    assert len(StageRuns(manifest(), stage, PAIRS).run(inputs, 5, None)["sum"]) == 1
    assert stage.calls == [1]


def test_request_is_sized_by_its_rows_and_its_longest_list():
    runs, limits = StageRuns(manifest(), Copies(), PAIRS), RequestLimits(max_cells=90)
    runs.check(requested(10), 10, limits)
    with pytest.raises(TooLarge, match=r"max_cells: expected at most 90 .* about 99 for 11 rows with up to 3 "):
        runs.check(requested(11), 11, limits)
    runs.check(requested(11), 11, None)


def test_list_that_is_sent_once_counts_for_every_row():
    runs, limits = StageRuns(manifest(), Copies(), PAIRS), RequestLimits(max_cells=90)
    once = {**requested(11), "past": requested(1)["past"]}
    with pytest.raises(TooLarge, match="got about 99 for 11 rows"):
        runs.check(once, 11, limits)


def test_values_that_say_sizes_count_as_lengths():
    runs = StageRuns(manifest(), Copies(), StageGrowth([GrowthTerm(1, 1, 1.0)], ["word", "past"]))
    inputs, limits = requested(1), RequestLimits(max_cells=100)
    runs.check(inputs, 1, limits)
    with pytest.raises(TooLarge, match="got about 101"):
        runs.check({**inputs, "word": Strings.of(["x" * 101])}, 1, limits)
    with pytest.raises(TooLarge, match="got about 400"):
        runs.check({**inputs, "past": Ragged.of([[400, -7]])}, 1, limits)


def test_row_beyond_three_runs_is_refused_where_the_runtime_does_not_bound_memory():
    stage, growth, limits = Copies(), StageGrowth([GrowthTerm(1, 1, stage_runs.AT_ONCE)]), RequestLimits()
    most, more = requested(1), requested(1, 4)
    StageRuns(manifest(), stage, growth).check(most, 1, limits)
    with pytest.raises(TooLarge, match=r"max_cells: expected at most \d+ .* for a row, got about \d+"):
        StageRuns(manifest(), stage, growth).check(more, 1, limits)
    stage.bounded = True
    StageRuns(manifest(), stage, growth).check(more, 1, limits)


def test_runs_end_in_the_time_of_their_request():
    class Slow(Copies):
        def traced(self, data):
            raise AssertionError("nothing is measured")

        def run(self, inputs, rows, found, limit):
            limit.run(lambda: None)

    class Ended:
        def run(self, call):
            raise EndedRun("the model did not finish in time for these inputs")

    with pytest.raises(EndedRun):
        StageRuns(manifest(), Slow(), PAIRS).run(requested(2), 2, Ended())
