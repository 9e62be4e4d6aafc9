import numpy as np

from loadtest.bench.verdict import dcnv2_shape as shape


def test_queries_have_the_published_pair_shares_in_random_order():
    sizes = [len(query["floats"]) for query in shape.queries(50, 100)]
    assert {size: sizes.count(size) for size in set(sizes)} == shape.PAIRS
    assert sizes != sorted(sizes)
    assert sum(size * share for size, share in shape.PAIRS.items()) == 27_100


def test_query_has_the_reference_number_of_valid_ids():
    query = shape.columns(3, 50, np.random.default_rng(0))
    assert [query[name].shape for name in shape.NAMES] == [(3, hot) for hot in shape.HOT]
    assert sum(shape.HOT) == 214
    for name, rows in zip(shape.NAMES, shape.ROWS):
        assert 0 <= query[name].min() <= query[name].max() < min(rows, 50)
    assert query["floats"].shape == (3, shape.FLOATS)


def test_engine_gets_the_lists_sent_over_the_wire():
    query = shape.columns(4, 50, np.random.default_rng(0))
    made = shape.ragged(query)
    lists = made["c20"]
    assert lists.row_splits.tolist() == [0, 100, 200, 300, 400]
    np.testing.assert_array_equal(lists.values[100:200], query["c20"][1])
    assert made["floats"] is query["floats"]


def test_equal_seeds_give_equal_queries():
    one, other = (shape.queries(50, 3, seed=7) for _ in range(2))
    for a, b in zip(one, other):
        assert all((a[name] == b[name]).all() for name in a)
