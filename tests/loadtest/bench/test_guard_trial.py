"""The guard's trial, small: streams kept and replayed, poison made and tried."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from dataclasses import replace
from pathlib import Path

from loadtest.bench.guard_poison import DRIFT, POISONS, drift_step
from loadtest.bench.guard_replay import Replay
from loadtest.bench.guard_streams import STREAMS, train_stream
from loadtest.bench.guard_trial import HELD, NOT_TRIED, ROLLED_BACK, SERVED, try_good, try_poison

pytestmark = pytest.mark.tensorflow
DELTAS = 24


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    launch = next(stream for stream in STREAMS if stream.name.startswith("a launch"))
    return train_stream(
        replace(launch, full_rows=4000, delta_rows=200), Path("unused"), tmp_path_factory.mktemp("kept"), DELTAS
    )


def test_saved_stream_is_reused_instead_of_trained(kept):
    assert len(kept.deltas) == DELTAS
    again = train_stream(kept.stream, Path("unused"), kept.folder, DELTAS)
    assert again.deltas == kept.deltas
    assert kept.read(3).step == 4
    assert len(kept.asked[0]) == 512


def test_good_deltas_are_followed_and_scored_as_served(kept, tmp_path):
    replay = Replay(kept, tmp_path)
    before = replay.score(replay.asked)
    found = replay.follow(0, 6)
    assert (found.deltas, found.held, found.taken_back, replay.held()) == (6, [], [], "")
    assert replay.version.generation.step == 6
    after = replay.score(replay.asked)
    assert before.shape == after.shape == (512,)
    assert not np.array_equal(before, after)
    # A second passes with each look, ten with each delta.
    assert replay.clock.now_s() == 60.0
    replay.ask(replay.asked, seconds=2)
    assert replay.clock.now_s() == 62.0


def test_each_poison_is_well_formed_and_obvious_ones_are_held(kept, tmp_path):
    replay = Replay(kept, tmp_path / "made")
    replay.follow(0, 12)
    for poison in POISONS:
        looks, asked = poison.make(replay, 0)
        assert looks, poison.name
        for delta in [delta for look in looks for delta in look] or [drift_step(replay)]:
            replace(delta, step=13, parent_step=12).check_fits(replay.replica.manifest)
        assert asked is None or len(asked) == 512
    found = try_poison(POISONS[2], kept, tmp_path / "tried")
    assert found.outcome in (HELD, ROLLED_BACK), found
    assert found.reason


def test_drift_step_raises_the_mean_by_five_percent(kept, tmp_path):
    replay = Replay(kept, tmp_path)
    replay.follow(0, 2)
    before = replay.score(replay.asked).mean()
    replay.publish(drift_step(replay))
    assert replay.held() or replay.score(replay.asked).mean() == pytest.approx(1.05 * before, rel=1e-3)
    assert DRIFT in POISONS


def test_outcomes_of_a_whole_stream_are_reported(kept, tmp_path):
    good = try_good(kept, tmp_path / "good")
    assert good.deltas == DELTAS
    assert not (tmp_path / "good").exists()
    nothing = replace(POISONS[0], make=lambda replay, seed: ([], None))
    assert try_poison(nothing, kept, tmp_path / "none").outcome == NOT_TRIED
    assert SERVED == "served"
