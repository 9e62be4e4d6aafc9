"""`make -C loadtest top-items`: the best items of a whole table; loadtest/results/top-items.md.

A table of rows of 50 float32 whose keys are no row numbers, and users' vectors, all random. What a request for the 100
best items scans is timed in process, as processor time on one thread, in turn with other ways: the scan of the rows'
codes for one user, for eight users at once, as requests that wait together share it, for one user after a delta of all
rows, whose codes are made again, and before they are; a product in numpy with a copy of all rows that is ready, and
`argpartition` of it; the same with a copy made anew, as after any delta. Filters let a share of the items through, by a
range of prices and a set of categories: the text is read and evaluated with each scan, in numpy the columns are arrays
and the product of what the mask excludes is minus infinity. All answers are those of the rows themselves. The user's
vector comes on top, at the cost of a request with one candidate.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.top_items.filter_columns import FilterColumns
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity, ItemFilter
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.row_ranking import rank_rows
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    RECORD,
    EntityEntry,
    Input,
    Manifest,
    TableDelta,
    TableEntry,
    pack_records,
    record_layout,
)
from freshet_serving.processor.tables.table import ServedTable, packed
from loadtest.bench.pairs import Pair, compare
from loadtest.reports.report import RESULTS, begun, opening, store, table

DIM, ITEMS, SHARED = 50, 100, 8
SIZES = (100_000, 1_000_000)
ROUNDS = 15
SHARES = (1, 10, 50)
CATEGORIES = [f"category {n}" for n in range(8)]
"""Every other one passes, and of their items so many that a share of all does, in percent."""
WAYS = {
    "scan": "scan, one user",
    "shared": f"scan, {SHARED} users at once",
    "changed": "scan, one user, after a delta of all rows",
    "stale": "scan, one user, before the codes of a delta of all rows are made",
    **{f"filter {share}": f"scan, one user, with a filter that {share} % pass" for share in SHARES},
    "copy": "product in numpy, the copy ready",
    "export": "product in numpy, the copy made anew",
}
PAIRS = {
    "copy": "scan / product with a ready copy",
    "export": "scan / product with a copy made anew",
    "shared": f"scan for {SHARED} users / for one",
    "changed": "scan after a delta of all rows / product with a ready copy",
    "stale": "scan before their codes are made again / product with a ready copy",
    **{
        f"filter {share}": f"scan with a filter that {share} % pass / product with a ready copy and a mask"
        for share in SHARES
    },
}


def served(rows: int, random: np.random.Generator) -> tuple[ServedTable, Any, RowCodes]:
    """Return a table with so many rows, a copy of them in the order of their keys, and their codes."""
    keys = np.sort(random.choice(1 << 40, rows, replace=False)).astype(np.int64)
    index = hash_index.empty_index(hash_index.capacity_for(rows))
    hash_index.build(index.ctypes.data, len(index), keys)
    copy = random.standard_normal((rows, DIM)).astype(np.float32)
    tensors = {"keys": keys, "index": index, "rows": copy}
    items = ServedTable(TableEntry("items", DIM, rows), tensors)
    codes = RowCodes(items, tensors, DIM)
    refresh(codes, 0)
    return items, copy, codes


def refresh(codes: RowCodes, epoch: int) -> None:
    """Make all codes that do not hold as of an epoch."""
    while codes.refresh(epoch):
        pass


def filtered_records(keys: Any, filters: list[Input], columns: Any, text_nbytes: int) -> Any:
    """Return an entity of columns for filters alone, and the table with its records."""
    entity = EntityEntry("item", "item", [], text_nbytes=text_nbytes, filters=filters)
    shop = Manifest("shop", 1, "", 0.0, [Input("item", "int64")], [], [], [], 1, {}, {}, entities=[entity])
    table = TableEntry(entity.table, record_layout(shop, entity).words, len(keys), RECORD)
    shop.tables.append(table)
    records = pack_records(shop, entity, columns, len(keys), hash_strings)
    source = FilteredEntity.of(shop, "item")
    assert source is not None, "the entity has filters"
    return source, ServedTable(table, packed(keys, records, RECORD))


class Shop:
    """Prices and categories of items, as the records of an entity and as arrays."""

    def __init__(self, keys: Any, codes: RowCodes, random: np.random.Generator) -> None:
        self.price = random.random(len(keys)).astype(np.float32)
        self.category = random.integers(0, len(CATEGORIES), len(keys)).astype(np.int32)
        filters = [Input("price", "float32"), Input("category", "string")]
        columns = {"price": self.price, "category": Strings.of([CATEGORIES[n] for n in self.category])}
        self.source, served_table = filtered_records(keys, filters, columns, 32)
        self.columns = FilterColumns(codes, served_table, self.source)
        while self.columns.refresh(0):
            pass
        self.arrays = {**codes.arrays, **self.columns.arrays}
        self.tables = np.array([served_table.descriptor()], np.int64)

    def bits(self, share: int) -> Any:
        """Return the bits of a filter that a share of the items passes, in percent."""
        wanted = {"price": [None, share / 50], "category": CATEGORIES[::2]}
        return ItemFilter(json.dumps(wanted).encode(), self.source).begin(self.arrays, self.tables, 0).bits

    def mask(self, share: int) -> Any:
        """Return which items pass, bool, by numpy."""
        return (self.price <= np.float32(share / 50)) & np.isin(self.category, np.arange(0, len(CATEGORIES), 2))


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Return the figures of a table with so many rows."""
    random = np.random.default_rng(3)
    items, copy, codes = served(rows, random)
    descriptor, users = np.array(items.descriptor()), random.standard_normal((SHARED, DIM)).astype(np.float32)
    none = [np.empty(0, np.int64)] * SHARED
    everything = TableDelta(items.export(0)[0], copy, none[0])
    moved, _, moved_codes = served(rows, np.random.default_rng(3))
    stale, _, stale_codes = served(rows, np.random.default_rng(3))
    for changed, changed_codes in ((moved, moved_codes), (stale, stale_codes)):
        changed_codes.changing([everything.keys])
        changed.apply(everything, 1)
    refresh(moved_codes, 1)

    def scan(count: int) -> Any:
        return rank_rows(descriptor, 0, codes.arrays, users[:count], none[:count], ITEMS, lambda scanned: True)

    def scan_changed(changed: Any, arrays: Any) -> Any:
        return rank_rows(changed, 1, arrays, users[:1], none[:1], ITEMS, lambda scanned: True)

    def product(of: Any) -> Any:
        scores = of @ users[0]
        return np.argpartition(scores, -ITEMS)[-ITEMS:]

    shop = Shop(items.export(0)[0], codes, random)

    def scan_filtered(share: int) -> Any:
        return rank_rows(descriptor, 0, shop.arrays, users[:1], none[:1], ITEMS, lambda scanned: True, shop.bits(share))

    def masked_product(share: int) -> Any:
        scores = copy @ users[0]
        scores[~shop.mask(share)] = -np.inf
        return np.argpartition(scores, -ITEMS)[-ITEMS:]

    for share in SHARES:
        best = masked_product(share)
        passing = np.sort(items.export(0)[0][best[shop.mask(share)[best]]])
        if not np.array_equal(np.sort(scan_filtered(share)[0].keys), passing):
            raise RuntimeError("the filtered scan's items are not those of the product with a mask")
    wanted = np.sort(items.export(0)[0][product(copy)])
    if not np.array_equal(np.sort(scan(1)[0].keys), wanted):
        raise RuntimeError("the scan's items are not those of the product")
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "copy": (lambda: scan(1), lambda: product(copy)),
        "export": (lambda: scan(1), lambda: product(items.export(0)[1])),
        "changed": (partial(scan_changed, np.array(moved.descriptor()), moved_codes.arrays), lambda: product(copy)),
        "stale": (partial(scan_changed, np.array(stale.descriptor()), stale_codes.arrays), lambda: product(copy)),
        **{f"filter {share}": (partial(scan_filtered, share), partial(masked_product, share)) for share in SHARES},
        "shared": (lambda: scan(SHARED), lambda: scan(1)),
    }
    found = {
        name: compare(Pair(PAIRS[name], *sides, 1, "scan"), rounds, time.process_time_ns)
        for name, sides in ways.items()
    }
    ratios = {name: [each.ratio.median, each.ratio.low, each.ratio.high] for name, each in found.items()}
    # The scan of one user is the first side of "copy"; of that and of "export" the other side is a product.
    times = {"scan": found["copy"].a_ns, "copy": found["copy"].b_ns, "export": found["export"].b_ns}
    times |= {name: each.a_ns for name, each in found.items() if name not in times}
    memory, columns = codes.nbytes / copy.nbytes, shop.columns.nbytes / rows
    ms = {name: ns / 1e6 for name, ns in times.items()}
    return {"rows": rows, "ratios": ratios, "ms": ms, "memory": memory, "columns": columns}


def page(results: dict[str, Any]) -> str:
    lines = opening("The best items of a whole table", __doc__ or "", results)
    sizes = results["sizes"]
    heads = ["processor time, ms", *(f"{size['rows']:,} items" for size in sizes)]
    times = [[text, *(f"{size['ms'][way]:.1f}" for size in sizes)] for way, text in WAYS.items()]
    lines.append(table(heads, times))
    heads = ["ratio (quartiles)", *(f"{size['rows']:,} items" for size in sizes)]
    rows = [
        [text, *("{:.2f} ({:.2f} to {:.2f})".format(*size["ratios"][pair]) for size in sizes)]
        for pair, text in PAIRS.items()
    ]
    kept = (
        f"The codes take {sizes[-1]['memory']:.2f} of the rows' bytes, once for all processes; a copy 1.00 in each. "
        f"The two columns that the filter reads take {sizes[-1]['columns']:.0f} bytes an item, once."
    )
    return "\n".join([*lines, "", table(heads, rows), "", kept, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest top-items", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = begun("top-items") | {"sizes": [measure(rows, options.rounds) for rows in SIZES]}
    store(options.out, "top-items", results, page(results))


if __name__ == "__main__":
    main()
