"""Our side is exact whatever deltas do, and the report says what was measured and what was not."""

import numpy as np

from loadtest.bench.bench_retrieval_peers import MISSING, OURS, measure, page
from loadtest.bench.retrieval_peer import ITEMS, SHARES, STOCK, best_of, changes_of, items_of, queries_of, stock_of
from loadtest.bench.retrieval_side import Scanned, lists_under_deltas
from loadtest.reports.report import machine, origin

ROWS = 900


def test_lists_are_the_best_before_and_after_codes_are_made():
    vectors, stock, (query, *_) = items_of(ROWS), stock_of(ROWS), queries_of(1)
    index = Scanned(vectors, stock)

    def check():
        for share in SHARES:
            best = best_of(vectors, query, stock < STOCK * share)
            assert set(index.search(query, STOCK * share, 0)) == set(best)

    check()
    for round_ in range(2):
        changed, new = changes_of(ROWS, round_)
        index.begin_change(changed, new)
        vectors[changed] = new
        check()
        index.settle()
        check()


def test_lists_are_made_under_each_delta():
    lists = lists_under_deltas(ROWS, 0)
    assert lists["deltas"] == 0
    assert set(lists) == {"deltas"}
    assert OURS[-1] == "loadtest.bench.retrieval_side"


def test_report_says_what_is_missing_and_what_was_found():
    run = {"shares": {str(share): {"query_s": 0.01, "recall": 0.5} for share in SHARES}, "build_s": 1.0, "memory": 2.0}
    run |= {"changing": [{"change_s": 0.5, "query_s": 0.01, "recall": 0.25}], "uncoded": {"query_s": 0.02}}
    about = {"machine": machine(), "origin": origin("-C loadtest retrieval-peers", "ARGS", [])}
    alone = page(about | {"sizes": {str(ROWS): {"runs": {"Freshet": [run]}, "checked": {"deltas": 3}}}})
    assert MISSING in alone
    assert "| queries a second of one core while a tenth changes each second | 50 |" in alone
    late = run | {"changing": [{"change_s": 1.5, "query_s": 0.01, "recall": 0.25}]}
    checked = {"deltas": 3, "lists": 7, "equal": 6, "equal_up_to_ties": 7, "worst": 1e-8}
    sides = {"runs": {"Freshet": [run], "usearch": [late, run]}, "checked": checked}
    both = page(about | {"sizes": {str(ROWS): sides, "10": sides}})
    assert both.index("| 10 items") < both.index(f"| {ROWS} items")
    assert "changes each second | 50 | 25 (0 to 50) |" in both
    assert "| equal to faiss's | 6 |" in both


def test_ours_is_measured_alone():
    (measured,) = measured_by(runs := {}, 1)["Freshet"]
    assert measured["shares"]["0.01"]["recall"] == 1.0
    assert np.isfinite(measured["memory"])
    assert ITEMS == 100
    assert measured_by(runs, 1) == {"Freshet": [measured]}


def measured_by(runs, repeats):
    measure(runs, {"Freshet": [*OURS, str(ROWS), "1"]}, repeats, lambda: None)
    return runs
