"""What a version's notes say of sources: those that can be read count, whatever else is there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.extensions.top_items.item_sources import ItemSource, sources_of
from freshet_serving.processor.extensions.top_items.section import (
    ItemRanking,
    describe_ranking,
    item_ranking_note,
    noted_origin,
    source_entry,
    with_sources_note,
)
from freshet_serving.processor.package import TableEntry
from tests.support.ranked import DIM, NUMBERS, SOURCES, manifest, with_filters


def described(sources, table=NUMBERS, dim=2):
    made = manifest(notes={"item_ranking": item_ranking_note("user_vector", "item")["item_ranking"]})
    made.tables.append(TableEntry(table, dim, 0))
    made.notes["item_ranking"]["sources"] = sources
    return made


def test_versions_have_the_sources_that_their_notes_name():
    made = described(SOURCES)
    assert list(ItemRanking.of(made).sources) == ["popular", "new"]
    assert "; sources model, like, popular, new" in describe_ranking(made)
    new = ItemRanking.of(made).sources["new"]
    assert (new.table, new.column, new.columns, new.origin_s) == (1, 1, 2, 1.7e9)
    assert ItemRanking.of(manifest()).sources == {}


def test_a_column_of_the_ranked_rows_is_a_source():
    sources = ItemRanking.of(described({"popular": source_entry("item", DIM - 1)})).sources
    assert (sources["popular"].table, sources["popular"].columns) == (0, DIM)


@pytest.mark.parametrize(
    "entry",
    [
        None, [], "popular", {}, source_entry("gone", 0), source_entry(NUMBERS, 2), source_entry(NUMBERS, -1),
        source_entry(NUMBERS, True), source_entry(NUMBERS, 0, float("nan")), source_entry(NUMBERS, 0, 10**400),
        source_entry(NUMBERS, 0, "1"), source_entry(["x"], 0), source_entry("item", DIM),
        source_entry("entities.item", 0),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_read_are_no_sources(entry):
    made = with_filters(described({"popular": entry, "new": SOURCES["new"]}))
    assert list(ItemRanking.of(made).sources) == ["new"]
    made.notes["item_ranking"]["sources"] = entry
    assert ItemRanking.of(made).sources == {}


def test_one_table_beside_the_ranked_one_has_sources():
    made = described({"popular": source_entry(NUMBERS, 0), "new": source_entry("more", 0)})
    made.tables.append(TableEntry("more", 2, 0))
    assert list(ItemRanking.of(made).sources) == ["popular"]
    made.notes["item_ranking"]["sources"]["popular"] = source_entry("item", 0)
    assert list(ItemRanking.of(made).sources) == ["popular", "new"]


def test_tables_by_another_hash_are_no_sources():
    made = described(SOURCES)
    made.tables[1] = TableEntry(NUMBERS, 2, 0, hash_seed=3)
    assert ItemRanking.of(made).sources == {}


@settings(max_examples=25, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=6,
    )
)
def test_notes_of_any_kind_are_read(noted):
    assert sources_of(manifest(), noted, 0, DIM) == {}


def test_notes_of_sources_are_those_that_versions_read():
    notes = with_sources_note(manifest().notes, SOURCES["popular"], SOURCES["new"])
    assert notes["item_ranking"]["sources"] == SOURCES
    assert noted_origin(notes) == 1.7e9
    assert noted_origin(with_sources_note(manifest().notes, SOURCES["popular"], None)) is None
    assert with_sources_note({}, SOURCES["popular"], None) == {}


def test_products_of_a_source_are_its_numbers():
    source = ItemSource(0, 1, 3, 4096.0, 0.5)
    rows = np.array([[9, 0.25, 7], [1, 2, 3]], np.float32)
    assert source.vectors(2).tolist() == [[0, 1, 0]] * 2
    assert source.scores(rows @ source.vectors(1)[0]).tolist() == [1024.5, 8192.5]
