"""The best items of a whole table: equal to all items sent as candidates, of one generation, at a bounded cost."""

import threading
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded, TooLarge
from freshet_serving.processor.extensions.top_items import best_items, row_ranking
from freshet_serving.processor.extensions.top_items.item_ranker import MAX_QUEUED
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.sessions.request import MAX_TOP_ITEMS
from freshet_serving.processor.tables.budgets import Budgets
from tests.support.packages import make_inputs, write_package
from tests.support.ranked import LENGTH, MODEL, best, histories, ranked_delta, write_ranked
from tests.support.waiting import until

ITEMS = range(40)
FIRST = dict.fromkeys(ITEMS, 0)
LAYOUTS = ({"sessions": 2}, {"compute": "inline"}, {"sessions": 1, "device_stages": 1})
LONG = [int(i) for i in np.random.default_rng(5).integers(0, 45, 50)]
HISTORIES = ([], [7], [1, 2, 3, 4, 5, 6, 7], LONG[:LENGTH], LONG, [1000], [3, 3, 3])


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    """For tests that only ask."""
    folder = tmp_path_factory.mktemp("ranked")
    write_ranked(folder, ITEMS)
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as opened:
        yield opened


@pytest.fixture
def opened(open_repository):
    """Makes a processor of a model that ranks items."""

    def make(items=ITEMS, dtype="float32", notes=None, **options):
        return open_repository(partial(write_ranked, items=items, dtype=dtype, notes=notes), **options)

    return make


@pytest.fixture
def held(monkeypatch):
    """Scans wait until the event is set; counts them and their users."""
    free, scans, rank = threading.Event(), [], row_ranking.rank_rows

    def wait(table, epoch, codes, vectors, *rest):
        scans.append(len(vectors))
        assert free.wait(60)
        return rank(table, epoch, codes, vectors, *rest)

    monkeypatch.setattr(best_items, "rank_rows", wait)
    yield free, scans
    free.set()


def ask(k=5, *users, **more):
    return PredictRequest(MODEL, histories(*(users or ([1, 2],))), top_items=k, **more)


def assert_best(reply, contents, step, users, k):
    assert list(reply.outputs) == ["item_ids", "scores"]
    ids, scores = reply.outputs["item_ids"], reply.outputs["scores"]
    assert (ids.dtype, scores.dtype) == (np.int64, np.float32)
    assert len(ids) == len(scores) == len(users)
    for user, history in enumerate(users):
        wanted_ids, wanted = best(contents, step, history, k)
        np.testing.assert_allclose(scores[user], wanted, atol=1e-5)
        # Where two scores differ by rounding, either order is right.
        close = np.isclose(wanted[:, None], wanted, atol=1e-5, rtol=0)
        assert all(ids[user, n] in wanted_ids[close[n]] for n in range(len(wanted)))


@pytest.mark.parametrize("options", LAYOUTS)
def test_best_items_are_those_of_all_sent_as_candidates(opened, options):
    processor = opened(**options)
    for history in HISTORIES:
        for k in (1, 5, 30):
            reply = processor.process(ask(k, history))
            assert_best(reply, FIRST, 0, [history], k)
            candidates = {"item": reply.outputs["item_ids"][0], **histories(history)}
            scored = processor.process(PredictRequest(MODEL, candidates))
            np.testing.assert_allclose(scored.outputs["score"][:, 0], reply.outputs["scores"][0], atol=1e-5)
            assert str(reply.generation) == str(scored.generation) == "1.0"


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_of_other_types_rank_as_candidates_do(opened, dtype):
    processor = opened(dtype=dtype)
    reply = processor.process(ask(38, [1, 2]))
    candidates = {"item": reply.outputs["item_ids"][0], **histories([1, 2])}
    scored = processor.process(PredictRequest(MODEL, candidates)).outputs["score"][:, 0]
    np.testing.assert_allclose(scored, reply.outputs["scores"][0], atol=1e-5)
    assert (np.diff(reply.outputs["scores"][0]) <= 0).all()


def test_every_user_has_a_row_of_best_items(processor):
    users = [[1], [], [5, 6, 7], LONG]
    assert_best(processor.process(ask(4, *users)), FIRST, 0, users, 4)


def test_all_forms_of_a_history_give_the_same_items(processor):
    events = np.array([3, 4, 9])
    wanted = processor.process(ask(5, events.tolist())).outputs["item_ids"]
    shared = {"history.item": events, "history.row_splits": np.array([0, 3])}
    padded = {"history.item": np.array([[3, 4, 9, 0]]), "history.lengths": np.array([3])}
    for inputs in (shared, padded):
        reply = processor.process(PredictRequest(MODEL, inputs, top_items=5))
        assert np.array_equal(reply.outputs["item_ids"], wanted)


def test_equal_scores_are_ordered_by_id(processor):
    assert processor.process(ask(6, [])).outputs["item_ids"].tolist() == [[0, 1, 2, 3, 4, 5]]
    ids = processor.process(ask(40, [30])).outputs["item_ids"][0].tolist()
    # These pairs have one row each.
    assert all(ids.index(twin) == ids.index(twin - 1) + 1 for twin in (8, 15, 22, 36))


def test_fewer_items_than_asked_for_are_all_returned(opened):
    processor = opened(items=(3, 5, 8))
    assert_best(processor.process(ask(MAX_TOP_ITEMS, [])), dict.fromkeys((3, 5, 8), 0), 0, [[]], 3)
    assert processor.process(ask(2, [3, 5])).outputs["item_ids"].tolist() == [[8]]
    # Each user gets as many as the one with the fewest.
    assert processor.process(ask(9, [3, 5], [])).outputs["item_ids"].shape == (2, 1)
    assert processor.process(ask(9, [3, 5, 8])).outputs["scores"].shape == (1, 0)


def test_empty_table_has_no_best_items(opened):
    assert opened(items=()).process(ask(3)).outputs["item_ids"].shape == (1, 0)


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_deltas_removals_and_a_rollback_change_the_items(opened, upload):
    processor, contents = opened(), dict(FIRST)
    steps = {1: ([3, 50, 51], [0, 20]), 2: ([50, 4], [51]), 3: ([20], list(range(5, 15)))}
    seen = {0: dict(contents)}
    for step, (upserts, removed) in steps.items():
        upload(processor, ranked_delta(step, upserts, removed))
        contents |= dict.fromkeys(upserts, step)
        for item in removed:
            del contents[item]
        seen[step] = dict(contents)
        reply = processor.process(ask(50, [1, 2, 50]))
        assert str(reply.generation) == f"1.{step}"
        assert_best(reply, contents, step, [[1, 2, 50]], 50)
    processor.rollback(MODEL, Generation(1, 1))
    reply = processor.process(ask(50, [1, 2, 50]))
    assert str(reply.generation) == "1.1"
    assert_best(reply, seen[1], 1, [[1, 2, 50]], 50)


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
@pytest.mark.parametrize("options", LAYOUTS[:2])
def test_reply_is_of_one_generation_while_deltas_arrive(opened, upload, options):
    processor, last = opened(**options), 15
    contents = {0: dict(FIRST)}
    for step in range(1, last + 1):
        # An item comes with each step, and is gone with the next one.
        contents[step] = dict.fromkeys([n for n in ITEMS if n % 3], step) | {n: 0 for n in ITEMS if not n % 3}
        contents[step][100 + step] = step
    found, failed = [], []

    def answered_after(count):
        # It ends with the first reply of the last step.
        return not asking.is_alive() or len(found) > count

    def ask_on():
        try:
            while not found or found[-1].generation.step < last:
                found.append(processor.process(ask(60, [1, 2, 3])))
        except BaseException as error:
            failed.append(error)

    asking = threading.Thread(target=ask_on)
    asking.start()
    for step in range(1, last + 1):
        upserts = [n for n in ITEMS if n % 3] + [100 + step]
        upload(processor, ranked_delta(step, upserts, [99 + step] if step > 1 else []))
        until(partial(answered_after, len(found)))
    asking.join()
    assert not failed
    assert len({reply.generation.step for reply in found}) > 5
    different = {(r.generation.step, r.outputs["scores"].tobytes(), r.outputs["item_ids"].tobytes()): r for r in found}
    for (step, *_), reply in different.items():
        assert_best(reply, contents[step], step, [[1, 2, 3]], 60)


@pytest.mark.parametrize("k", [-1, MAX_TOP_ITEMS + 1, 10**12])
def test_hostile_number_of_items_is_refused(processor, k):
    with pytest.raises(BadInput, match=f"top_items: expected 1 to {MAX_TOP_ITEMS}, got {k}"):
        processor.process(ask(k))


def test_candidates_beside_the_number_are_ranked(processor):
    inputs = {"item": np.array([9, 1, 30, 4, 77, 9, 31]), **histories([1])}
    reply = processor.process(PredictRequest(MODEL, inputs, top_items=3))
    scored = processor.process(PredictRequest(MODEL, {**inputs, "item": np.array([1, 4, 9, 30, 31])}))
    order = np.argsort(-scored.outputs["score"][:, 0], kind="stable")[:3]
    assert reply.outputs["item_ids"].tolist() == [np.array([1, 4, 9, 30, 31])[order].tolist()]
    np.testing.assert_allclose(reply.outputs["scores"][0], scored.outputs["score"][order, 0], atol=1e-5)
    # Those without a row are no items, and each counts once.
    every = processor.process(PredictRequest(MODEL, inputs, top_items=9))
    assert (every.outputs["item_ids"].shape, every.unfilled) == ((1, 5), 4)


@pytest.mark.parametrize("inputs", [{}, {"history.item": np.array([1])}, {**histories([1]), "other": np.array([1])}])
def test_other_inputs_are_checked_as_for_candidates(processor, inputs):
    with pytest.raises(BadInput, match="input"):
        processor.process(PredictRequest(MODEL, inputs, top_items=3))


def test_model_without_items_to_rank_is_refused(tmp_path):
    write_package(tmp_path)
    refused = pytest.raises(BadInput, match="model 'small' version 1 cannot rank all items of a table")
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor, refused:
        processor.process(PredictRequest("small", make_inputs([1]), top_items=3))


def test_number_of_items_is_refused_without_the_extension(opened, without_extensions):
    without_extensions("top_items")
    with pytest.raises(BadInput, match="top_items needs the extension 'top_items': FRESHET_EXTENSIONS="):
        opened().process(ask(3))


def test_version_without_the_note_is_refused(opened):
    with pytest.raises(BadInput, match="cannot rank all items"):
        opened(notes={}).process(ask(3))


def test_items_in_a_row_store_are_refused(processor, monkeypatch):
    monkeypatch.setattr(processor.predictor.replica(MODEL), "remote", SimpleNamespace(holds=lambda table: table == 0))
    with pytest.raises(BadInput, match="expected a table in memory, got 'item', whose rows are in a row store"):
        processor.process(ask(3))


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_table_with_a_memory_budget_is_ranked_whole(opened, upload, tmp_path):
    items = range(800)
    processor = opened(items, undo_depth=0, budgets=Budgets({f"{MODEL}/*": 1}, tmp_path))
    assert_best(processor.process(ask(50, [1, 2])), dict.fromkeys(items, 0), 0, [[1, 2]], 50)
    contents = dict.fromkeys(items, 0)
    for step in range(1, 4):
        upload(processor, ranked_delta(step, list(range(step, 800, 7))))
        contents |= dict.fromkeys(range(step, 800, 7), step)
        found = []
        for _ in range(5):
            found.append(processor.process(ask(50, [1, 2])))
            # Rows move to the log, and their places are used again.
            processor.host.upkeep.maintain()
        assert len({reply.outputs["scores"].tobytes() for reply in found}) == 1
        assert_best(found[0], contents, step, [[1, 2]], 50)
    assert processor.host.model(MODEL).pick().tables["item"].tier.log_nbytes


def test_scanned_rows_count_as_ids(opened):
    processor = opened(limits=RequestLimits(max_ids=80))
    assert processor.process(ask(2, [1], [2])).outputs["item_ids"].shape == (2, 2)
    with pytest.raises(TooLarge, match=r"max_ids: expected at most 80 items to rank per request.* got 40 for 3;"):
        processor.process(ask(2, [1], [2], [3]))
    with pytest.raises(TooLarge, match="max_ids: expected at most 80 items per reply, got 2 times 41"):
        processor.process(ask(41, [1], [2]))


@pytest.mark.unguarded("each delta has a matrix of its own, so all scores move")
def test_rows_of_deltas_count_as_ids_too(opened, upload):
    processor = opened(limits=RequestLimits(max_ids=80))
    upload(processor, ranked_delta(1, [50]))
    assert processor.process(ask(2, [1])).outputs["item_ids"].shape == (1, 2)
    with pytest.raises(TooLarge, match=r"max_ids: expected at most 80 items to rank per request.* got more for 2;"):
        processor.process(ask(2, [1], [2]))


def test_waiting_requests_share_a_scan(opened, held):
    processor, replies = opened(), SimpleQueue()
    free, scans = held
    processor.predictor.submit(ask(3, [1]), replies.put)
    until(lambda: scans)
    for k, history in ((2, [2]), (7, [4, 5])):
        processor.predictor.submit(ask(k, history), replies.put)
    # Too many users for the same scan.
    processor.predictor.submit(ask(1, *[[n] for n in range(15)]), replies.put)
    free.set()
    found = [replies.get(timeout=60) for _ in range(4)]
    assert scans == [1, 2, 15]
    for reply, (k, users) in zip(found, ((3, [[1]]), (2, [[2]]), (7, [[4, 5]]), (1, [[n] for n in range(15)]))):
        assert_best(reply, FIRST, 0, users, k)


def test_only_so_many_requests_wait(opened, held):
    processor, replies = opened(), SimpleQueue()
    free, scans = held
    processor.predictor.submit(ask(), replies.put)
    until(lambda: scans)
    for _ in range(MAX_QUEUED):
        processor.predictor.submit(ask(), replies.put)
    with pytest.raises(Overloaded, match=f"{MAX_QUEUED} requests for the best items wait already"):
        processor.process(ask())
    free.set()
    assert not [r for _ in range(1 + MAX_QUEUED) if isinstance(r := replies.get(timeout=60), FreshetError)]


def test_deadline_that_passes_in_the_queue_costs_no_scan(opened, held):
    clock = FakeClock()
    processor, replies = opened(sessions=1), SimpleQueue()
    ranker = processor.predictor.answerers["top_items"]
    ranker._clock = ranker._session._clock = processor.predictor._clock = clock
    free, scans = held
    processor.predictor.submit(ask(), replies.put)
    until(lambda: scans)
    processor.predictor.submit(ask(timeout_s=1.0), replies.put)
    clock.advance(2.0)
    free.set()
    assert not isinstance(replies.get(timeout=60), FreshetError)
    assert isinstance(replies.get(timeout=60), Expired)
    assert len(scans) == 1
    # The first scan took 2 seconds.
    with pytest.raises(Overloaded, match="time limit would pass") as refused:
        processor.process(ask(timeout_s=1.0))
    assert refused.value.late


def test_deadline_ends_a_scan(opened, monkeypatch):
    clock = FakeClock()
    processor = opened(items=range(2000))
    ranker = processor.predictor.answerers["top_items"]
    ranker._clock = ranker._session._clock = processor.predictor._clock = clock
    monkeypatch.setattr(row_ranking, "POSITIONS", 64)
    scan, calls = row_ranking.code_scan.scan_codes, []

    def slow(*arguments):
        calls.append(clock.advance(1.0))
        return scan(*arguments)

    monkeypatch.setattr(row_ranking.code_scan, "scan_codes", slow)
    with pytest.raises(Expired, match="deadline: passed while items were ranked"):
        processor.process(ask(timeout_s=3.5))
    assert len(calls) == 4


def test_fault_of_one_request_fails_no_other(opened, held, monkeypatch):
    processor, replies = opened(), SimpleQueue()
    free, scans = held
    processor.predictor.submit(ask(), replies.put)
    until(lambda: scans)
    processor.predictor.submit(ask(2, [2]), replies.put)
    processor.predictor.submit(ask(2, [3]), replies.put)
    rank = best_items.rank_rows

    def fail(table, epoch, codes, vectors, seen, *rest):
        if any(3 in items for items in seen):
            raise ValueError("played")
        return rank(table, epoch, codes, vectors, seen, *rest)

    monkeypatch.setattr(best_items, "rank_rows", fail)
    free.set()
    found = [replies.get(timeout=60) for _ in range(3)]
    assert [isinstance(reply, FreshetError) for reply in found] == [False, False, True]
    assert str(found[2]) == "the model could not be run on this request"


def test_close_answers_what_waits(opened, held):
    processor, replies = opened(), SimpleQueue()
    free, scans = held
    processor.predictor.submit(ask(), replies.put)
    until(lambda: scans)
    processor.predictor.submit(ask(), replies.put)
    closing = threading.Thread(target=processor.close)
    closing.start()
    until(lambda: processor.predictor.answerers["top_items"]._closed)
    free.set()
    closing.join()
    assert not isinstance(replies.get(timeout=60), FreshetError)
    assert isinstance(replies.get(timeout=60), NotReady)
    with pytest.raises(NotReady):
        processor.predictor.answerers["top_items"].submit(
            ask(), processor.predictor.replica(MODEL), None, RequestLimits(), replies.put
        )
