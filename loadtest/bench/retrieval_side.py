"""Our side of `make -C loadtest retrieval-peers`, as its peers are measured (retrieval_peer).

Arguments: rows and rounds; or rows, seconds and a file, into which go the lists of queries under one delta a second.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.filter_columns import FilterColumns
from freshet_serving.processor.extensions.top_items.item_filters import ItemFilter
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.row_ranking import rank_rows
from freshet_serving.processor.package import (
    Input,
    TableDelta,
    TableEntry,
)
from freshet_serving.processor.tables.table import ServedTable, packed
from loadtest.bench import retrieval_peer
from loadtest.bench.bench_top_items import filtered_records
from loadtest.bench.retrieval_peer import DIM, ITEMS, SHARES, STOCK, changes_of, items_of, queries_of, stock_of

STEP = 7
"""Keys of items are multiples of it: no row numbers."""


class Scanned:
    """Rows, their codes and the column that filters read, as a server keeps them; one thread changes and searches."""

    def __init__(self, vectors: NDArray[np.float32], stock: NDArray[np.int64]) -> None:
        """Take a copy of the vectors."""
        keys, self._none = np.arange(len(vectors), dtype=np.int64) * STEP, np.empty(0, np.int64)
        tensors = packed(keys, vectors.copy(), "float32")
        self._rows = ServedTable(TableEntry("items", DIM, len(keys)), tensors)
        self._codes, self._epoch = RowCodes(self._rows, tensors, DIM), 0
        columns = {"stock": stock.astype(np.int64)}
        self._source, self._records = filtered_records(keys, [Input("stock", "int64")], columns, 0)
        self._columns = FilterColumns(self._codes, self._records, self._source)
        self.settle()
        while self._columns.refresh(0):
            pass

    def search(self, query: NDArray[np.float32], below: float, breadth: int) -> NDArray[np.int64]:
        """Return the best items of those whose stock is below a number; the breadth of a search is of no use here."""
        bits, arrays = None, self._codes.arrays
        if below < STOCK:
            arrays = {**arrays, **self._columns.arrays}
            wanted = json.dumps({"stock": [None, int(below) - 1]}).encode()
            bits = ItemFilter(wanted, self._source).begin(arrays, np.array([self._records.descriptor()]), 0).bits
        table = np.array(self._rows.descriptor())
        (best,) = rank_rows(table, self._epoch, arrays, query[None], [self._none], ITEMS, lambda rows: True, bits)
        return best.keys // STEP

    def begin_change(self, changed: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Apply a delta; codes of its rows are left to be made."""
        order = np.argsort(changed)
        keys = changed[order] * STEP
        self._codes.changing([keys])
        self._epoch += 1
        self._rows.reclaim(self._epoch, self._epoch, len(keys))
        versions = self._rows.apply(TableDelta(keys, vectors[order], self._none), self._epoch)
        self._rows.retire(versions, self._epoch)

    def refresh(self) -> bool:
        """Make some codes; return whether more are left."""
        return self._codes.refresh(self._epoch)

    def settle(self) -> None:
        """Make all codes."""
        while self.refresh():
            pass

    def change(self, changed: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Apply a delta, and make the codes of its rows."""
        self.begin_change(changed, vectors)
        self.settle()

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Return the figures of this side: those of its peers, and a query's seconds before changed rows have codes."""
    retrieval_peer.INDEXES["freshet"] = Scanned
    answer: dict[str, Any] = retrieval_peer.measure("freshet", rows, rounds)
    vectors, stock = items_of(rows), stock_of(rows)
    index = Scanned(vectors, stock)
    changed, new = changes_of(rows, 0)
    index.begin_change(changed, new)
    vectors[changed] = new
    seconds, recall = retrieval_peer.searched(index, vectors, stock, 1.0, 0, queries_of())
    return answer | {"uncoded": {"query_s": seconds, "recall": recall}}


def lists_under_deltas(rows: int, seconds: float) -> dict[str, Any]:
    """Return lists of queries while a delta of a tenth of the rows comes each second.

    A query is made after each step of what follows a delta: before codes are made, between their slices and after.
    """
    index, queries, random = Scanned(items_of(rows), stock_of(rows)), queries_of(), np.random.default_rng(6)
    began_s, rounds, made = time.monotonic(), 0, []
    while (at_s := time.monotonic() - began_s) < seconds or rounds < int(seconds):
        if at_s >= rounds + 1:
            index.begin_change(*changes_of(rows, rounds))
            rounds += 1
        else:
            index.refresh()
        for share in SHARES:
            number, below = int(random.integers(0, len(queries))), int(STOCK * share)
            keys = index.search(queries[number], below, 0)
            made.append((rounds, below, number, np.pad(keys, (0, ITEMS - len(keys)), constant_values=-1)))
    names = ("rounds", "limits", "queries", "keys")
    return {name: np.array(values) for name, values in zip(names, zip(*made))} | {"deltas": rounds}


def main(arguments: list[str]) -> None:
    """Print figures, or write lists to a file."""
    if len(arguments) == 2:
        print(json.dumps(measure(*map(int, arguments))))
    else:
        lists = lists_under_deltas(int(arguments[0]), float(arguments[1]))
        np.savez(arguments[2], **lists)
        print(json.dumps({"deltas": lists["deltas"]}))


if __name__ == "__main__":
    main(sys.argv[1:])
