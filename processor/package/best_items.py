"""Answers to requests for the best items of a table: ids and scores, instead of the model's own outputs."""

from __future__ import annotations

from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Output

ITEM_IDS, SCORES = "item_ids", "scores"
RANKED_OUTPUTS = {dtype: [Output(ITEM_IDS, dtype=dtype), Output(SCORES)] for dtype in ("int64", "uint64")}
"""Outputs of a request for the best items, [users, k] each, by the type of the items' ids."""


def ranks_items(manifest: Manifest) -> bool:
    """Return whether a manifest is that of requests for the best items (Answerer.read_as())."""
    return any(manifest.outputs is outputs for outputs in RANKED_OUTPUTS.values())
