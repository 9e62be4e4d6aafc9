from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput, runs
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Feature
from tests.models.zoo.sequence_models import manifest


def embedding(name, offset, width, kind="id"):
    return Feature(name=name, kind=kind, input=name, table=name, offset=offset, width=width)


def number(name, offset):
    return Feature(name=name, kind="float", input=name, offset=offset)


def test_features_become_spans_by_kind_in_column_order():
    layout = DenseInput.from_features([embedding("c", 5, 4, "strings"), number("b", 4), embedding("a", 0, 4)])

    assert layout == DenseInput(
        9, (ColumnSpan("a", 0, 4, table="a"), ColumnSpan("c", 5, 4, table="c")), (ColumnSpan("b", 4, 1),)
    )


def test_dim_is_the_most_common_width_or_the_larger():
    widths = [8, 4, 4, 8, 2]
    features = [embedding(f"f{i}", sum(widths[:i]), w) for i, w in enumerate(widths)]

    assert DenseInput.from_features(features).dim == 8
    assert DenseInput.from_features(features[:3]).dim == 4
    assert DenseInput.from_features([number("a", 0)]).dim == 0


def test_feature_without_a_combiner_is_rows_and_a_mask():
    sequence = Feature("s", "ids", "s", table="s", combiner="none", max_length=3, offset=0, width=15)
    layout = DenseInput.from_features([sequence, embedding("a", 15, 4), embedding("b", 19, 15)])
    assert layout.embeddings == (
        ColumnSpan("s", 0, 15, 3, table="s"),
        ColumnSpan("a", 15, 4, table="a"),
        ColumnSpan("b", 19, 15, table="b"),
    )
    assert [span.dim for span in layout.embeddings] == [4, 4, 15]
    assert layout.dim == 4


@pytest.mark.parametrize("offset", [3, 5, -1])
def test_overlapping_columns_or_gaps_are_refused(offset):
    with pytest.raises(BadInput, match=r"feature 'b': expected offset [04]"):
        DenseInput.from_features([embedding("a", 0, 4), number("b", offset)])


def test_empty_features_are_refused():
    with pytest.raises(BadInput, match="expected at least one"):
        DenseInput.from_features([])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=20))
def test_runs_cover_the_spans_in_order_without_touching(parts):
    spans, at = [], 0
    for gap, width in parts:
        spans.append(ColumnSpan("s", at + gap, width))
        at += gap + width

    merged = runs(spans)

    covered = [c for span in spans for c in range(span.offset, span.offset + span.width)]
    assert [c for start, stop in merged for c in range(start, stop)] == covered
    assert all(a[1] < b[0] for a, b in pairwise(merged))


def test_examples_have_histories_of_every_length():
    whole = manifest("a", 5, timed=True, floats=True)
    layout = DenseInput.from_features(whole.features, whole.sequences)
    (span,) = layout.sequences
    assert [(c.name, c.dim, c.table) for c in span.columns] == [
        ("history.item", 8, "item"),
        ("history.action", 4, "action"),
        ("history.watched", 0, ""),
    ]
    values = layout.examples(16)["history"]
    masks = values[:, 40:45], values[:, 65:70]
    np.testing.assert_array_equal(*masks)
    assert {0, 1, 5} <= set(masks[0].sum(1).tolist())
    watched, seconds = values[:, 70:75], values[:, 75:]
    assert (watched[masks[0] == 0] == 0).all()
    assert len(np.unique(watched)) > 16
    assert (np.diff(seconds, axis=1) <= 0).all()
    assert (seconds[masks[0] == 0] == 0).all()
