"""The campaign's checker finds a reply of another generation, and one that mixes two."""

import numpy as np
import pytest

from freshet_serving import Publisher
from tests.programs.generation_checker import GenerationChecker
from tests.support import entities
from tests.support.packages import make_weights, reference, rows_of, tag_id

REQUEST = [0, 3, 12, 55, 3]
USERS = list(range(20))


@pytest.fixture
def folder(tmp_path):
    """A version with a delta of features, one of rows and one of weights, the last on the first."""
    version = entities.write_package(tmp_path / "repository")
    publisher = Publisher(tmp_path / "repository", "small")
    publisher.publish(entities={"profile": ([3, 12], entities.columns([3, 12], 1))}, removed={"entities.profile": [0]})
    publisher.publish(rows={"user": (USERS, rows_of(USERS, 2))})
    publisher.publish(dense=make_weights(3))
    return version


def scores(features, rows, weights):
    contents = dict.fromkeys(entities.KNOWN, 0)
    if features:
        contents |= dict.fromkeys([3, 12], 1)
        del contents[0]
    sent = entities.sent(REQUEST, contents)
    words = [tag.decode() for tag in sent["tags"].values.tolist()]
    tags = [words[a:b] for a, b in zip(sent["tags"].row_splits, sent["tags"].row_splits[1:])]
    model_tags = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    return reference(dict.fromkeys(USERS, rows), model_tags, make_weights(weights), REQUEST, tags, sent["floats"])


GENERATIONS = {0: (False, 0, 0), 1: (True, 0, 0), 2: (True, 2, 0), 3: (True, 2, 3)}


def test_each_generation_is_scored_from_the_files(folder):
    checker = GenerationChecker(folder, [REQUEST])
    for step, parts in reversed(GENERATIONS.items()):
        assert checker.problem(f"1.{step}", 0, scores(*parts)) == ""


@pytest.mark.parametrize("parts", [(False, 2, 3), (True, 0, 3), (True, 2, 0)])
def test_reply_with_one_part_of_another_generation_is_found(folder, parts):
    checker = GenerationChecker(folder, [REQUEST])
    assert "names 1.3" in checker.problem("1.3", 0, scores(*parts))


def test_reply_of_another_generation_is_named(folder):
    checker = GenerationChecker(folder, [REQUEST])
    checker.expected(1, 0)
    assert checker.problem("1.2", 0, scores(*GENERATIONS[1])).endswith("has the scores of [1]")
    assert "no generation" in checker.problem("1.2", 0, np.zeros(len(REQUEST)))
    assert checker.problem("1.2", 0, scores(*GENERATIONS[2])[:-1])
