"""Answer requests for the best items of a whole table, from models whose score is a product.

item_ranker  ranks all items of a table: its thread and queue
row_ranking  ranks a table's rows by their products with given vectors
successors   scores of the items that followed a user's newest events
top_rows     scans a table for the rows with the largest products with given vectors
section      the manifest's note about how a version ranks items
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__ = ["section"]


def _item_ranker(groups: Any, clock: Any) -> Any:
    from freshet_serving.processor.extensions.top_items.item_ranker import ItemRanker

    return ItemRanker(groups, clock)


def _describe_ranking(manifest: Any) -> str:
    from freshet_serving.processor.extensions.top_items.section import describe_ranking

    return describe_ranking(manifest)


REQUIRES = ()
EXTENSION = Extension(answerers={"top_items": _item_ranker}, descriptions={"top items": _describe_ranking})
