"""Answer requests for the best items of a whole table, from models whose score is a product.

item_ranker  ranks all items of a table: its thread and queue
best_items   ranks those that count: by their rows, and successors beside them
row_ranking  ranks a table's rows by their products with given vectors
item_explanation  an item's place among one user's best items, or what leaves it out
item_columns  the columns of listed items, for people
asked_source  what ranks the items of a request: the model, likeness to an item, or what ranks them for everybody
item_sources  numbers of items that rank them for everybody, such as their popularity
scanned_rows  the rows and vectors of one scan, of a pinned state
chosen_items  which items count in a request: its filter, allow, block, seen and candidates
filter_text  reads the text of a filter
item_filters  says of items whether they pass a filter
filter_columns  keeps the columns that filters read by position
text_codes   numbers for texts, exactly
record_reads  kernels that read records by key, and bits and lists by position
code_scan    scans int8 codes of rows for those with the largest products with given vectors
row_codes    the codes of a table, and which of them hold
ranked_rows  keeps codes beside the rows of the table that a version ranks
successors   scores of the items that followed a user's newest events
section      the manifest's note about how a version ranks items
item_tower    the items of a version with two towers, and what their vectors are computed of
item_vectors  keeps these vectors, through deltas, new weights and rollbacks
vector_pass   computes all of one generation, slice by slice
vector_table  a table of vectors and their codes, as it is kept and as readers map it
tower_runs    computes vectors by the version's own graph
item_readers  finds which items read a row
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__ = ["section"]


def _item_ranker(groups: Any, clock: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.item_ranker import ItemRanker

    return ItemRanker(groups, clock)


def _ranked_rows(files: Any, tables: Any, tensors: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.section import NOTE

    noted = files.manifest.notes.get(NOTE)
    if isinstance(noted, dict) and "vectors" in noted:
        from freshet_serving.processor.extensions.top_items.item_vectors import ItemVectors

        return ItemVectors.of(files, tables, tensors)
    from freshet_serving.processor.extensions.top_items.ranked_rows import RankedRowWatcher

    return RankedRowWatcher.of(files.manifest, tables, tensors)


def _source_rows(files: Any, tables: Any, tensors: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.ranked_rows import RankedRowWatcher

    return RankedRowWatcher.of_sources(files.manifest, tables, tensors)


def _explained_item(manifest: Any, item: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.item_explanation import ExplainedItem

    return ExplainedItem.of(manifest, item)


def _item_columns(manifest: Any, _item: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.item_columns import ItemColumns

    return ItemColumns.of(manifest)


def _describe_ranking(manifest: Any) -> str:
    from freshet_serving.processor.extensions.top_items.section import describe_ranking

    return describe_ranking(manifest)


REQUIRES = ()
EXTENSION = Extension(
    answerers={"top_items": _item_ranker},
    row_watchers={"top_items": _ranked_rows, "item_sources": _source_rows},
    explanations={"item": _explained_item, "items": _item_columns},
    descriptions={"top items": _describe_ranking},
)
