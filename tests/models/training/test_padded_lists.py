"""Lists that were filled up to one length are told of."""

import numpy as np
import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.padded_lists import padding_lines
from freshet_serving.processor.columns import Ragged

ROWS = 100


class Rows:
    """Rows with one list."""

    def __init__(self, name, lists):
        self._batch = Batch({name: Ragged.of(lists)}, np.zeros(len(lists), np.float32), None, 0)

    def batches(self, rows, start=0):
        yield self._batch


def lines(lists, **options):
    return padding_lines(Rows("tags", lists), [FeatureConfig("tags", "ids", "tags", 4, **options)])


def values(row, count):
    return [(row * 7 + i * 3) % 50 + 1 for i in range(count)]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("padding", [0, -1, "", 'a"b'])
def test_lists_with_one_value_at_their_ends_look_padded(padding, left):
    made = []
    for row in range(ROWS):
        own = values(row, row % 5)
        own = own if isinstance(padding, int) else list(map(str, own))
        fill = [padding] * (8 - len(own))
        made.append(fill + own if left else own + fill)
    (line,) = lines(made)
    quoted = {'a"b': r'"a\"b"', "": '""'}.get(padding, str(padding))
    assert line.startswith(f"features.tags: 100% of the lists end or begin with {padding!r} twice, which looks like")
    assert line.endswith(f"features.tags.padding = {quoted} leaves it out")


@pytest.mark.parametrize(
    "made",
    [
        [values(row, 5) for row in range(ROWS)],
        [values(row, 1) * 4 for row in range(ROWS)],
        [[0] for _ in range(ROWS)],
        [[] for _ in range(ROWS)],
        [[1, 0] for _ in range(ROWS)],
    ],
    ids=["values", "one value a list", "lists of one", "empty lists", "ends in one value once"],
)
def test_other_lists_do_not(made):
    assert lines(made) == []


def test_padding_that_is_set_is_not_told():
    assert lines([[1, 0, 0]] * ROWS, padding=0) == []


@pytest.mark.parametrize(("events", "told"), [("", True), ("user", False)])
def test_sequences_are_looked_at_unless_made_of_events(events, told):
    sequence = SequenceConfig("h", {"item": "hist"}, from_events=events)
    feature = FeatureConfig("h.item", "ids", "item", 4, from_="hist", sequence=sequence)
    found = padding_lines(Rows("h.item", [[1, 0, 0]] * ROWS), [feature])
    assert [line.partition(":")[0] for line in found] == ["sequences.h"] * told


def test_data_without_lists_are_not_read():
    assert padding_lines(None, [FeatureConfig("user", "id", "user", 4)]) == []
