"""A version whose dense graph is divided, end to end: the same scores by either way, and the user's part done once."""

import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.zoo.deepfm import build
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.columns import BufferLayout, ColumnLayout, PackedColumns, Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import (
    Delta,
    Feature,
    GraphInput,
    Input,
    Manifest,
    Output,
    TableDelta,
    TableEntry,
    undivided,
)
from freshet_serving.processor.package import divided as split_graphs
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.running.cost import TURN_S, CostTable
from freshet_serving.processor.running.graph_run import GraphRun, SubgraphRun
from freshet_serving.processor.sessions import group as group_module
from freshet_serving.processor.sessions.stages import STAGING_PER_STAGE
from tests.support.extensions import needs
from tests.support.waiting import at_once

pytestmark = pytest.mark.tensorflow

DIM, IDS = 8, 50
BUCKETS = (1, 16, 64, 128)
FEATURES = [
    Feature("item", "id", "item", side="item", table="item", offset=0, width=DIM),
    Feature("user", "id", "user", side="user", table="user", offset=DIM, width=DIM),
    Feature("price", "float", "price", side="item", mean=0.5, scale=2.0, offset=2 * DIM),
    Feature("history", "ids", "history", side="user", table="item", combiner="mean", offset=2 * DIM + 1, width=DIM),
    Feature("age", "float", "age", side="user", offset=3 * DIM + 1),
]
TABLE_NAMES = ("item", "user")


def draft():
    numbers, ids = [Input(name, "float32") for name in ("price", "age")], [Input(name, "int64") for name in TABLE_NAMES]
    inputs = [*ids, *numbers, Input("history", "int64", ragged=True)]
    tables = [TableEntry(name, DIM, IDS) for name in TABLE_NAMES]
    return Manifest("m", 1, "deepfm", 0.0, inputs, FEATURES, tables, [Output("score")], 3 * DIM + 2, {}, {})


def table(seed):
    return np.arange(IDS, dtype=np.int64), np.random.default_rng(seed).standard_normal((IDS, DIM), np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """(repository, dense weights) of a version that is divided."""
    repository = tmp_path_factory.mktemp("once")
    graph = DenseGraph.from_keras(build(DenseInput.from_features(FEATURES), (64, 16), seed=3).scores)
    tables = {name: table(n) for n, name in enumerate(TABLE_NAMES)}
    publish_version(repository, draft(), tables, graph, buckets=BUCKETS)
    return repository, graph.weights


LAYOUTS = {
    "threads": {"sessions": 2},
    "inline": {"sessions": 1, "compute": "inline"},
    "stages": pytest.param({"sessions": 1, "device_stages": 1}, marks=needs("device_stages")),
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def processor(request, package):
    with Processor.initialize(ProcessorConfig(repository=str(package[0]), **request.param)) as opened:
        always(opened)
        yield opened


def always(processor, way=True):
    """Sends every request that can be divided one way."""
    processor.predictor.replica("m").graphs.pays = lambda parts, rows: way


def inputs(candidates, seed=0):
    """One user, so many candidates."""
    random = np.random.default_rng(seed)
    history = random.integers(0, IDS + 5, seed % 4)
    return {
        "item": random.integers(0, IDS + 5, candidates),
        "user": random.integers(0, IDS + 5, 1),
        "price": random.standard_normal(candidates).astype(np.float32),
        "history": Ragged(history, np.array([0, len(history)])),
        "age": random.standard_normal(1).astype(np.float32),
    }


def repeated(once):
    """The same with the user in every row."""
    candidates, history = len(once["item"]), once["history"]
    each = len(history.values)
    return once | {
        "user": np.repeat(once["user"], candidates),
        "age": np.repeat(once["age"], candidates),
        "history": Ragged(np.tile(history.values, candidates), np.arange(candidates + 1) * each),
    }


def score(processor, *requests):
    replies = processor.batch_process([PredictRequest("m", r) for r in requests])
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [reply.outputs["score"] for reply in replies]


def divided(processor):
    """Requests that were computed in parts."""
    return sum(stats.work.user_once for stats in processor.host.group_stats().values())


@pytest.mark.parametrize("candidates", [1, 2, 63, 64, 65, 128, 200])
def test_user_part_is_computed_once_with_equal_scores(processor, candidates):
    request = inputs(candidates, seed=candidates)
    before = divided(processor)

    (got,) = score(processor, request)
    assert divided(processor) > before
    (wanted,) = score(processor, repeated(request))

    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert got.shape == (candidates, 1)


def mixed():
    """Divided requests, whole ones, and one whose user varies by row."""
    requests = [inputs(n, seed=n) for n in (3, 70, 1, 16, 2, 40, 5, 128, 9)]
    requests[2] = repeated(requests[2])
    requests[5] = repeated(requests[5])
    requests[7] |= {"age": np.linspace(-1, 1, 128).astype(np.float32)}
    return requests


@pytest.mark.parametrize(
    ("requests", "least"), [(mixed(), 6), ([inputs(2, seed=n) for n in range(40)], 40)], ids=["mixed", "many users"]
)
def test_requests_in_one_batch_keep_their_own_scores(processor, requests, least):
    always(processor, False)
    expected = score(processor, *requests)
    always(processor)
    for got, whole in zip(score(processor, *requests), expected):
        np.testing.assert_allclose(got, whole, rtol=1e-5, atol=1e-6)
    assert divided(processor) >= least


def test_sparse_and_dense_times_never_exceed_the_batch_time(processor):
    for way in (False, True):
        always(processor, way)
        (reply,) = processor.batch_process([PredictRequest("m", inputs(64))])
        timing = reply.timing
        assert timing.sparse_s > 0
        assert timing.dense_s > 0
        assert timing.sparse_s + timing.dense_s <= timing.ended_s - timing.began_s


def test_infinite_user_or_candidate_number_fails_only_its_request(processor):
    requests = [inputs(n, seed=n) for n in (3, 70, 16, 5)]
    wanted = score(processor, requests[0], requests[3])
    requests[1]["price"][69] = np.inf
    requests[2]["age"][0] = -np.inf
    replies = processor.batch_process([PredictRequest("m", r) for r in requests])
    assert [str(reply) for reply in replies[1:3]] == [
        "input 'price': expected finite numbers (or NaN), got inf in row 69, column 0",
        "input 'age': expected finite numbers (or NaN), got -inf in row 0, column 0",
    ]
    for mine, theirs in zip((replies[0], replies[3]), wanted):
        np.testing.assert_allclose(mine.outputs["score"], theirs, rtol=1e-5, atol=1e-6)


def test_user_ids_are_looked_up_once_per_request(processor):
    def lookups(request):
        before = counts()
        score(processor, request)
        return (counts() - before)[:, 0].tolist()

    def counts():
        return processor.predictor.groups.counts(processor.predictor.replica("m")).copy()

    request = inputs(30, seed=3)
    each = len(request["history"].values)

    items, users = lookups(request)
    # Two sessions, or two staging buffers, may begin at the same moment.
    assert users in range(1, 1 + STAGING_PER_STAGE + processor.predictor.groups.of("m").options.sessions)
    assert items == 30 + users * each
    assert lookups(repeated(request)) == [30 + 30 * each, 30]


@pytest.mark.parametrize("way", [True, False])
def test_large_chunked_request_looks_up_user_ids_once(processor, way):
    always(processor, way)
    request = inputs(700, seed=3)
    each = len(request["history"].values)
    (wanted,) = score(processor, repeated(request))
    before = processor.predictor.groups.counts(processor.predictor.replica("m")).copy()

    (got,) = score(processor, request)

    items, users = (processor.predictor.groups.counts(processor.predictor.replica("m")) - before)[:, 0].tolist()
    # Two sessions, or two staging buffers, may begin at the same moment.
    assert users in range(1, 1 + STAGING_PER_STAGE + processor.predictor.groups.of("m").options.sessions)
    assert items == 700 + users * each
    assert divided(processor) in (range(1, users + 1) if way else [0])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("candidates", [1, 5])
def test_user_ids_looked_up_in_parts_give_equal_scores(processor, monkeypatch, candidates):
    always(processor, False)
    history = Ragged(np.arange(45) % (IDS + 5), np.array([0, 45]))
    request = inputs(candidates) | {"history": history}
    (wanted,) = score(processor, request)
    monkeypatch.setattr(group_module, "LIGHT_IDS", 0)
    # Ten ids take as long as a turn.
    processor.predictor.replica("m").costs.id_s = TURN_S / 10
    before = processor.host.group_stats()["default"].work

    (got,) = score(processor, request)

    work = processor.host.group_stats()["default"].work
    # Five parts of the history, one of all else, and the rows, which are all that a device stage runs.
    staged = processor.predictor.groups.of("m").options.device_stages
    assert work.batches - before.batches == (1 if staged else 7)
    assert (work.requests - before.requests, work.rows - before.rows) == (1, candidates)
    np.testing.assert_array_equal(got, wanted)


def test_plain_user_columns_of_a_body_are_recognised():
    features = [f for f in FEATURES if f.name != "history"]
    offset, moved = 0, []
    for f in features:
        moved.append(Feature(f.name, f.kind, f.input, side=f.side, table=f.table, offset=offset, width=f.width))
        offset += f.width
    named = [i for i in draft().inputs if i.name != "history"]
    moved_draft = replace(draft(), inputs=named, features=moved, width=offset)
    plan = SparsePlan(replace(moved_draft, graphs=split_graphs(moved_draft, [("u0", 4)])))

    def packed(users):
        sizes = {"item": (np.int64, 3), "user": (np.int64, users), "price": (np.float32, 3), "age": (np.float32, users)}
        places, at = [], 0
        for name, (dtype, count) in sizes.items():
            places.append(ColumnLayout(name, np.dtype(dtype), count, 0, at))
            at += np.dtype(dtype).itemsize * count
        return PackedColumns(bytes(at), 0, BufferLayout(tuple(places), at))

    assert [plan.bind_inputs(packed(users)).user_split for users in (1, 3, 1)] == [True, False, True]


def test_one_flip_publishes_a_delta_to_both_parts(package, tmp_path):
    repository, dense = package
    copied = tmp_path / "repository"
    shutil.copytree(repository, copied)
    keys, rows = table(9)
    weights = {name: value * 1.5 + 0.05 for name, value in dense.items()}
    tables = {name: TableDelta(keys, rows, np.empty(0, np.int64)) for name in TABLE_NAMES}
    with Processor.initialize(ProcessorConfig(repository=str(copied), sessions=1)) as opened:
        always(opened)
        request = inputs(70, seed=7)
        (before,) = score(opened, request)
        change_log = ChangeLog.of(Repository(copied).version("m"))
        change_log.publish(Delta("m", 1, 1, 0, tables, weights, published_at=time.time()))
        opened.poll()

        (after,) = score(opened, request)
        (wanted,) = score(opened, repeated(request))

    assert not np.allclose(before, after, atol=1e-3)
    np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-6)


def test_concurrent_threads_and_users_get_their_own_scores(package):
    requests = [inputs(20 + n, seed=n) for n in range(12)]
    failed = []
    with Processor.initialize(ProcessorConfig(repository=str(package[0]), sessions=2)) as opened:
        always(opened, False)
        wanted = score(opened, *requests)
        always(opened)

        def ask(number):
            for _ in range(20):
                (got,) = score(opened, requests[number])
                if not np.allclose(got, wanted[number], rtol=1e-5, atol=1e-6):
                    failed.append(number)

        at_once(ask, range(12))

    assert not failed


def price(whole, user, candidate):
    """The subgraphs of a divided version of these features, with costs."""
    manifest = replace(draft(), graphs=split_graphs(draft(), [("u0", 81)]))
    graphs = GraphRun(manifest, SparsePlan(manifest))
    graphs.price({"whole": whole, "user": user, "score": candidate})
    return graphs


def test_fewest_divided_rows_divide_the_longest_histories_too():
    graphs = price({1: 1.0, 16: 4.0}, {1: 1.0}, {16: 2.0})
    graphs._lengths = [SimpleNamespace(length=4)]
    divided = {4: [False, True, True], graphs._longest.length: [False, False, True]}
    graphs.split = SimpleNamespace(
        divided_now=divided.__getitem__, pays=lambda length, rows: divided[length][min(rows, 2)]
    )
    assert graphs.fewest_divided == 2


def test_split_is_used_only_where_measured_costs_favour_it():
    whole = {1: 1.0, 16: 4.0, 64: 10.0, 256: 36.0}

    dear = price(whole, {1: 1.0}, {64: 9.5, 256: 36.0})
    cheap = price(whole, {1: 1.0}, {64: 6.0, 256: 22.0})

    assert not any(dear.pays(dear._longest, rows) for rows in range(1, 1000))
    paying = [rows for rows in (1, 16, 48, 64, 65, 128, 256, 1000) if cheap.pays(cheap._longest, rows)]
    assert paying == [64, 128, 256, 1000]
    assert (dear.fewest_divided, cheap.fewest_divided) == (1, cheap.thresholds[0])
    assert CostTable(whole).amortised_dense_s(64) == pytest.approx(9.0)
    for once in (dear, cheap):
        told = [sum(turn <= rows for turn in once.thresholds) % 2 == 1 for rows in range(1, 300)]
        assert told == [once.pays(once._longest, rows) for rows in range(1, 300)]


def test_unknown_source_of_an_input_is_refused_by_name():
    manifest = draft()
    graph = undivided(manifest)
    odd = replace(graph, inputs=[*graph.inputs, GraphInput("noise", ["rows", 3], "dice")])
    with pytest.raises(BadInput, match=r"input 'noise': expected source features, sequence, got 'dice'"):
        SubgraphRun("score", odd, SparsePlan(manifest))
