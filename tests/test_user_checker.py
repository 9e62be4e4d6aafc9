"""The checker of kept users computes what the network scores, and finds replies of other users and generations."""

import numpy as np
import pytest

from tests.programs.user_checker import (
    ACTIONS,
    BUCKET_WIDTH,
    ITEMS,
    LENGTH,
    MOST_SECONDS,
    NETWORKS,
    SIZES,
    TOLERANCE,
    USERS,
    Change,
    Copy,
    changed,
    differ,
    first_contents,
    scores,
)
from tests.programs.user_clients import LISTS, Asked

FIRST = 1_700_000_000
ITEM, PRICES = [3, 1999, 3, 7], [0.5, -1.0, 2.0, 0.0]


@pytest.fixture(scope="module")
def contents():
    return first_contents(np.random.default_rng(1))


def copy_of(count, key=4, seed=0):
    random = np.random.default_rng(seed)
    columns = np.sort(random.integers(0, 15_000, count)) + FIRST, *random.integers(0, (ITEMS, ACTIONS), (count, 2)).T
    return Copy(key, list(zip(*(column.tolist() for column in columns))))


def test_no_seconds_lie_at_the_border_of_two_buckets():
    buckets = np.log(np.arange(2, MOST_SECONDS)) / BUCKET_WIDTH
    # In float32, as networks compute it, a logarithm is off by an ulp at most, and the quotient by half a one.
    error = np.spacing(np.float32(np.log(MOST_SECONDS))) / BUCKET_WIDTH + np.spacing(np.float32(buckets.max())) / 2
    assert np.abs(buckets - np.round(buckets)).min() > error


@pytest.mark.parametrize(
    "change",
    [
        Change({"item": [3]}, {}),
        Change({"user": [4]}, {}),
        Change({"action": [0]}, {}),
        Change({}, {"item": [3]}),
        *(Change({}, {}, (name,)) for name in ("history_bias_0/times", "history_all_1/bias", "mlp_out/bias")),
    ],
    ids=str,
)
def test_scores_of_another_generation_differ(contents, change):
    before, copy = scores(contents, copy_of(50), ITEM, PRICES), copy_of(50)
    assert not differ(before, before + TOLERANCE / 2)
    assert differ(before, scores(changed(contents, change, np.random.default_rng(2)), copy, ITEM, PRICES))


@pytest.mark.parametrize("count", [1, 50, LENGTH])
def test_scores_of_other_histories_differ(contents, count):
    copy = copy_of(count)
    expected = scores(contents, copy, ITEM, PRICES)
    (at, item, action), others = copy.events[count // 2], copy.events[: count // 2] + copy.events[count // 2 + 1 :]
    for events in (others, [*others, (at, item + 1, action)], [*others, (at, item, (action + 1) % ACTIONS)]):
        assert differ(expected, scores(contents, Copy(4, events), ITEM, PRICES))
    assert differ(expected, scores(contents, Copy(5, copy.events), ITEM, PRICES))
    assert differ(expected, expected[:-1])
    assert differ(expected, expected * np.nan)


def test_copy_adds_late_events_by_time_and_none_twice():
    copy = Copy(1, [(10, 1, 0), (20, 2, 0)])
    copy.append([(15, 3, 0), (10, 9, 0), (20, 2, 0)])
    assert copy.events == [(10, 1, 0), (10, 9, 0), (15, 3, 0), (20, 2, 0)]
    copy.replace([(10, 5, 1)])
    assert copy.events == [(10, 5, 1), (15, 3, 0), (20, 2, 0)]
    copy.remove([(15, 3, 0), (99, 1, 1)])
    assert copy.events == [(10, 5, 1), (20, 2, 0)]


def test_copy_has_the_newest_events():
    copy = copy_of(LENGTH + 9)
    assert len(copy.events) == LENGTH
    oldest, newest = copy.events[0][0], copy.events[-1][0]
    copy.append([(oldest - 1, 1, 1)])
    assert copy.events[0][0] == oldest
    copy.append([(newest + 1, 1, 1)])
    assert (len(copy.events), copy.events[-1]) == (LENGTH, (newest + 1, 1, 1))


# The checker is of a trial, and each network takes seconds to be written.
@pytest.mark.tensorflow
@pytest.mark.parametrize("network", [NETWORKS[0], *(pytest.param(n, marks=pytest.mark.long) for n in NETWORKS[1:])])
def test_scores_are_those_that_are_served_of_one_generation_and_of_two(network, tmp_path):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    from freshet_serving.processor.columns import Ragged
    from freshet_serving.processor.engine import Processor, ProcessorConfig
    from freshet_serving.processor.repository.log.change_log import ChangeLog
    from freshet_serving.processor.repository.model_repository import Repository
    from tests.processor.extensions.user_state.user_parts import Parts
    from tests.support.user_story import MODEL, user_delta, write_users

    random = np.random.default_rng(1)
    first = first_contents(random, network)
    change = Change({name: list(range(size)) for name, size in SIZES.items()}, {}, tuple(first.dense))
    second = changed(first, change, random)
    write_users(tmp_path / "r", first)
    options = ProcessorConfig(str(tmp_path / "r"), sessions=1, delta_guard="off")
    with Processor.initialize(options) as processor:
        processor.predictor.replica(MODEL).graphs.pays = lambda parts, rows: True
        parts, asked = Parts(processor), {}
        for count in (0, 1, 2, 40, LENGTH):
            copy = copy_of(count, key=count % USERS)
            flat = Asked(None, "score", copy.key, copy.events, tuple(ITEM), tuple(PRICES)).flat()
            asked[count] = copy, {n: Ragged(v, np.array([0, count])) if n in LISTS else v for n, v in flat.items()}
            served = parts.scores(count, asked[count][1])[:, 0]
            assert not differ(scores(first, copy, ITEM, PRICES), served)
        ChangeLog.of(Repository(tmp_path / "r").version(MODEL)).publish(user_delta(second, change, 1, 0))
        processor.poll()
        for count, (copy, inputs) in asked.items():
            served = parts.scores(count, inputs, 0)[:, 0]
            assert not differ(scores(second, copy, ITEM, PRICES, first), served)
            assert differ(scores(second, copy, ITEM, PRICES), served)
            assert not differ(scores(second, copy, ITEM, PRICES), parts.scores(count, inputs)[:, 0])
