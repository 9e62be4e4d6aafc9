"""Next-item networks follow a stream: what they learn and count is what a run over the same files learns and counts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.streams.followed_source import followed_source
from freshet_serving.models.training.described_items import SHRINK
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.item_rows import joined_keys
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.event_files import ITEMS, Steps, put, stream_to
from tests.models.training.streams import Notes, differing, snapshot
from tests.models.training.test_sourced_run import by_source, top
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.waiting import until

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def config_of(tmp_path, **named):
    return parse_config(raw_config(tmp_path, **named))


def raw_config(tmp_path, follow=True, name="followed", arch="sasrec_next", guard=None, **publish):
    return {
        "model": {"name": name, "arch": arch, "dropout": 0.0, "layers": 1},
        "data": {"path": str(tmp_path / "events"), "label": "clicked", "time": "ts", "follow": follow},
        "features": {"user": {"kind": "id", "side": "user"}, "item": {"kind": "id", "dim": 8, "side": "item"}},
        "sequences": {
            "h": {
                "columns": {"item": "item"},
                "tables": {"item": "item"},
                "from_events": "user",
                "ties": "file",
                "max_length": 6,
            }
            | ({"time": "ts"} if arch == "hstu_next" else {})
        },
        "train": {"epochs": 2, "batch_rows": 100, "learning_rate": 0.01, "dense_learning_rate": 0.01, "seed": 1},
        "evaluate": {"top": 3},
        "guard": guard or {},
        "publish": {"repository": str(tmp_path / "repository"), "full_rows": 400, "delta_rows": 200} | publish,
    }


def begin(config):
    return NextItemRun(config, reporter=Notes())


def top_of(tmp_path, history, count=3, **more):
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        app = serve(processor.predictor)[0]
        inputs = (history if isinstance(history, dict) else {"h.item": [history]}) | more
        body = json.dumps({"inputs": inputs}).encode()
        reply = send(app, "POST", "/v1/models/followed:predict", body, {"x-top-items": str(count)})
        assert reply.status == 200, reply.body
        return json.loads(reply.body)["outputs"]["item_ids"][0]


@pytest.fixture
def in_order(tmp_path):
    return Steps(tmp_path / "events")


@pytest.fixture(params=[False, True], ids=["in-order", "late"])
def events(tmp_path, request):
    return Steps(tmp_path / "events", request.param)


def test_a_followed_run_learns_what_a_run_over_its_files_learns(tmp_path, events):
    events.send(400)
    events.send(200)
    # Stored data have to be in order.
    stored = {"follow": events.late, "name": "whole"}
    whole = begin(config_of(tmp_path, **stored))
    whole.full()
    assert stream_to(whole, 600) == ["1.1"]
    run = begin(config_of(tmp_path))
    assert followed_source(run.source).endless
    assert run.full() == Generation(1, 0)
    events.send(300)
    assert stream_to(run, 900) == ["1.1", "1.2", "1.3"]
    # Continued by another process, from what its checkpoint has of histories and counts.
    again = begin(config_of(tmp_path))
    events.send(200)
    assert stream_to(again, 1100) == ["1.4"]
    whole = begin(config_of(tmp_path, **stored))
    assert stream_to(whole, 1100)[-1] == "1.4"
    assert whole.state.position == 1100
    assert differing(snapshot(again.trainer), snapshot(whole.trainer)) == []


def ledger_of(tmp_path):
    repository = Repository(tmp_path / "repository")
    return ChangeLog.of(repository.version("followed", repository.versions("followed")[-1]), whole=True)


def counts_of(run):
    """The counted numbers of each item's row, without its key."""
    export, layout = run.trainer.items.export(), run.trainer.rows
    counted = [*range(layout.dim, layout.dense), *range(layout.totals.start, layout.width)]
    return {key: row[counted].tobytes() for key, row in zip(export.keys.tolist(), export.rows)}


def test_new_item_is_best_until_its_delta_is_rolled_back(tmp_path, in_order):
    events = in_order
    events.send(600)
    run = begin(config_of(tmp_path, full_rows=600))
    run.full()
    before = counts_of(run)
    served = by_source(tmp_path, "popular", 40), by_source(tmp_path, "new", 40)
    assert len(served[0]) == len(served[1]) == 30
    events.send(200, item=7)
    assert stream_to(run, 800) == ["1.1"]
    assert counts_of(run) != before
    assert top_of(tmp_path, [])[0] == 7
    assert by_source(tmp_path, "popular", 1) == by_source(tmp_path, "new", 1) == [7]
    export, layout = run.trainer.items.export(), run.trainer.rows
    popularity = dict(zip(export.keys.tolist(), export.rows[:, layout.dim].tolist()))
    assert by_source(tmp_path, "popular", 40) == sorted(popularity, key=lambda item: (-popularity[item], item))
    follows = top(tmp_path, 1, like=np.array([105]))
    assert follows == top(tmp_path, 1, **{"h.item": np.array([[105]]), "h.lengths": np.array([1])})
    ledger_of(tmp_path).rollback(0)
    assert 7 not in top_of(tmp_path, [])
    assert (by_source(tmp_path, "popular", 40), by_source(tmp_path, "new", 40)) == served
    # A resumed run goes back, too: the item is in histories still, and has no count.
    again = begin(config_of(tmp_path, full_rows=600))
    events.send(200)
    assert stream_to(again, 1000)[-1].startswith("1.")
    export, layout = again.trainer.items.export(), again.trainer.rows
    rows = dict(zip(export.keys.tolist(), export.rows))
    assert rows[7][layout.dim] == 0
    assert not any(7 in joined_keys(row[layout.keys].reshape(3, -1).T) for row in rows.values())
    assert 7 not in top_of(tmp_path, [])


def test_shuffled_items_are_held_and_released_when_windows_are_good_again(tmp_path, in_order):
    events = in_order
    events.send(900)
    run = begin(config_of(tmp_path, full_rows=900, delta_rows=100))
    run.full()
    events.send(200)
    assert stream_to(run, 1100) == ["1.1", "1.2"]
    assert run.status().held == ""
    assert run.status().window_ndcg > 0.6
    events.send(100, shuffled=True)
    assert stream_to(run, 1200) == ["1.3"]
    assert "NDCG@3" in run.status().held
    history = ledger_of(tmp_path).history
    assert (history.target.step, history.head.step) == (2, 3)
    # Another process knows what is usual from its checkpoint.
    again = begin(config_of(tmp_path, full_rows=900, delta_rows=100))
    events.send(200)
    assert stream_to(again, 1400) == ["1.4", "1.5"]
    assert any("released" in line for line in again._report.notes)
    assert again.status().held == ""


def test_items_of_another_catalogue_are_held_in_a_batch_run_too(tmp_path, in_order):
    events = in_order
    events.send(900)
    rows = events.rows(100)
    pq.write_table(pa.table(rows | {"item": rows["item"] + 5000}), events.folder / "90000.parquet")
    run = begin(config_of(tmp_path, follow=False, full_rows=900, delta_rows=100))
    assert str(run.run().generation) == "1.1"
    # By which the command ends with code 3.
    assert run.status().held.startswith("100% of 100 events have an item without a row, usually 0%")
    assert ledger_of(tmp_path).history.target.step == 0


def stocked_items(folder, items, stock, name=int):
    """Write a catalogue: items of an even number are of one kind, others of another."""
    columns = {
        "item": [name(item) for item in items],
        "kind": [item % 2 + 1 for item in items],
        "stock": pa.array(stock, pa.int64()),
        "brand": [None if item % 3 == 0 else f"b{item % 3}" for item in items],
    }
    put(folder / "items.parquet", columns)


def described_config(tmp_path):
    raw = raw_config(tmp_path, full_rows=600)
    raw["features"]["kind"] = {"kind": "id", "dim": 4}
    raw["sequences"]["h"] |= {"columns": {"item": "item", "kind": "kind"}}
    path = str(tmp_path / "items.parquet")
    raw["entities"] = {"item": {"key": "item", "path": path, "columns": ["kind"], "filters": ["stock", "brand"]}}
    return parse_config(raw)


def test_described_items_are_found_and_filtered_before_any_event(tmp_path, in_order):
    events, items, given = in_order, [*range(100, 100 + ITEMS)], {"h.item": [[100, 101]], "h.kind": [[1, 2]]}

    def found(wanted):
        return set(top_of(tmp_path, given, ITEMS, filter=[json.dumps(wanted)]))

    described = [*items, 500]
    stocked_items(tmp_path, described, [item % 4 for item in described])
    events.send(600)
    run = begin(described_config(tmp_path))
    run.full()
    export, layout = run.trainer.items.export(), run.trainer.rows
    rows = dict(zip(export.keys.tolist(), export.rows))
    learned = np.array([rows[item][: layout.dim] for item in items])
    mean = learned.mean(axis=0)
    like = learned[np.array(items) % 2 == 0]
    apart = (like - mean).sum(axis=0) / (len(like) + SHRINK)
    # The mean is that of all learned rows at the time, which the item's own was none of.
    assert np.allclose(rows[500][: layout.dim], mean + apart, atol=1e-5)
    popular = {item: row[layout.dim] for item, row in rows.items()}
    assert 0 < popular[500] < min(popular[item] for item in items)
    assert 500 in top_of(tmp_path, given, ITEMS + 1)
    scored = {name: Ragged.of(lists * 2) for name, lists in given.items()} | {"item": np.array([500, 102])}
    with Processor(ProcessorConfig(str(tmp_path / "repository"))) as processor:
        processor.poll()
        served = processor.process(PredictRequest("followed", scored)).outputs["score"].reshape(-1)
    assert np.allclose(served, run.trainer.score(scored), atol=1e-5)
    others = {*described} - {100, 101}
    assert found({"stock": {"not": 0}}) == {item for item in others if item % 4}
    assert found({"brand": "b1", "kind": 1}) == {item for item in others if item % 3 == 1 and item % 2 == 0}
    assert found({"brand": {"not": "b1"}}) == {item for item in others if item % 3 != 1}
    # The catalogue has another item, and none of the last one: its next delta has both.
    described = [*items[:-1], 500, 501]
    stocked_items(tmp_path, described, [0 if item < 110 else 5 for item in described])
    table = run._item_keys._tables[0]
    assert [f.name for f in table.further] == ["stock", "brand"]
    until(lambda: table.newest().mark > 1 or table.refresh(None))
    events.send(200)
    stream_to(run, 800)
    assert 501 in top_of(tmp_path, given, ITEMS + 2)
    assert found({"stock": [1, None]}) == {item for item in described if item >= 110}
    assert items[-1] in found({"stock": {"not": [1, None]}})
    # What has events is learned from then on.
    assert run.trainer.items.export().keys.tolist().count(501) == 1


def test_items_whose_ids_are_strings_are_ranked_by_the_texts_of_an_entity(tmp_path, in_order):
    events, names = in_order, [f"item {item}" for item in range(100, 100 + ITEMS)]
    columns = events.rows(600)
    columns["item"] = [f"item {item}" for item in columns["item"]]
    pq.write_table(pa.table(columns), events.folder / "00000.parquet")
    # The last one has no record, and so no name.
    stocked_items(tmp_path, range(100, 99 + ITEMS), [1] * (ITEMS - 1), "item {}".format)
    raw = raw_config(tmp_path, full_rows=600)
    raw["features"]["item"] = {"kind": "string", "dim": 8, "side": "item"}
    raw["entities"] = {"item": {"key": "item", "path": str(tmp_path / "items.parquet"), "filters": ["stock"]}}
    run = begin(parse_config(raw))
    run.full()
    assert set(top_of(tmp_path, [["item 100", "item 103"]][0], ITEMS)) == set(names[:-1]) - {"item 100", "item 103"}
    assert set(top_of(tmp_path, ["item 100"], ITEMS, allow=[["item 105", "item 129", "x"]])) == {"item 105"}
    assert top_of(tmp_path, ["item 100"], ITEMS, filter=['{"stock": 0}']) == []


def test_a_new_version_goes_on_where_the_stream_is(tmp_path, in_order):
    events = in_order
    events.send(600)
    run = begin(config_of(tmp_path))
    run.full()
    assert stream_to(run, 600) == ["1.1"]
    before, notes = snapshot(run.trainer), Notes()
    again = NextItemRun(config_of(tmp_path), reporter=notes, start_options=StartOptions(new_version=True))
    assert (again.state.version, again.state.position) == (2, 600)
    assert differing(snapshot(again.trainer), before) == []
    assert not any("cannot be read" in line for line in notes.notes)
    events.send(200)
    assert stream_to(again, 800) == ["2.1"]
