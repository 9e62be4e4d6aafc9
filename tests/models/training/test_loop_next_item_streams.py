"""Next-item networks on streams of Redis and Kafka, with histories in a store, with erased users, and repeated."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.streams.followed_source import followed_source
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.features.input_lookup import parse_stores
from freshet_serving.processor.repository import Erasures
from freshet_serving.serving.request_headers import FEATURES_MISSING
from tests.models.streams.servers import KafkaRows, RedisRows
from tests.models.training.event_files import Steps, stream_to
from tests.models.training.streams import Notes, differing, snapshot
from tests.models.training.test_loop_follow_next_item import begin, config_of, raw_config
from tests.models.training.test_loop_stored_histories import served
from tests.processor.extensions.remote_rows.fakes import needs_redis
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.waiting import until

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


@pytest.fixture
def events(tmp_path):
    return Steps(tmp_path / "events", late=True)


@pytest.mark.parametrize("server", [pytest.param(RedisRows, marks=needs_redis), KafkaRows], ids=["redis", "kafka"])
def test_a_stream_is_learned_like_a_folder_and_a_resumed_run_goes_on(server, tmp_path, events, linger):
    linger(60.0)
    rows = events.rows(800)
    pq.write_table(pa.table(rows), events.folder / "00000.parquet")
    run = begin(config_of(tmp_path))
    run.full()
    assert stream_to(run, 800) == ["1.1", "1.2"]
    stream = server()
    try:
        messages = [json.dumps({name: column[n].item() for name, column in rows.items()}) for n in range(800)]
        raw = raw_config(tmp_path, name="streamed")
        raw["data"]["path"] = stream.url
        stream.send(*messages[:600])
        streamed = begin(parse_config(raw))
        streamed.full()
        assert stream_to(streamed, 600) == ["1.1"]
        followed_source(streamed.source).close()
        stream.send(*messages[600:])
        streamed = begin(parse_config(raw))
        assert stream_to(streamed, 800) == ["1.2"]
    finally:
        stream.close()
    assert differing(snapshot(run.trainer), snapshot(streamed.trainer)) == []


def followed(tmp_path, events, rows=(37, 100, 5, 160, 1, 97)):
    """A run that has learned rows as they came, a step for each few of them."""
    events.send(400)
    run = begin(config_of(tmp_path))
    run.full()
    for count in rows:
        events.send(count)
        stream_to(run, events.sent)
    return run


def test_a_repeated_run_has_the_weights_and_counts_of_the_followed_one(tmp_path, events):
    run = followed(tmp_path, events)
    config = config_of(tmp_path, follow=False, repository=str(tmp_path / "again"))
    folder = tmp_path / "repository" / ".checkpoints" / "followed"
    again = NextItemRun(config, reporter=Notes(), start_options=StartOptions(repeat=folder))
    again.run()
    assert again.state.position == run.state.position == events.sent
    assert again.state.step == run.state.step
    assert differing(snapshot(run.trainer), snapshot(again.trainer)) == []
    assert again.trainer.counts.clock.saved() == run.trainer.counts.clock.saved()


def stored(tmp_path, server, users="id"):
    raw = raw_config(tmp_path)
    raw["sequences"]["h"]["store"] = "main"
    raw["features"]["user"]["kind"] = users
    stores = {one.name: one for one in parse_stores({"main": f"redis://127.0.0.1:{server.port}"})}
    return begin(replace(parse_config(raw), online_stores=stores))


def learned(events):
    """The newest six items of each user."""
    found = {}
    for path in sorted(events.folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found.setdefault(f"followed:h:{row['user']}".encode(), []).append(row["item"])
    return {key: {"item": items[-6:]} for key, items in found.items()}


@needs_redis
def test_a_request_of_a_user_id_alone_ranks_by_the_learned_history(tmp_path, server):
    events = Steps(tmp_path / "events")
    events.send(400)
    run = stored(tmp_path, server)
    run.full()
    assert served(server) == learned(events)
    events.send(200)
    assert stream_to(run, 600) == ["1.1"]
    histories = learned(events)
    assert served(server) == histories
    store = {"name": "main", "url": f"redis://127.0.0.1:{server.port}"}
    options = ProcessorConfig(str(tmp_path / "repository"), sessions=1, online_stores=[store])
    with Processor.initialize(options) as processor:
        app = serve(processor.predictor)[0]

        def top(inputs):
            """The best items, once the store has answered in time: the machine may be busy."""
            body = json.dumps({"inputs": inputs}).encode()
            reply = send(app, "POST", "/v1/models/followed:predict", body, {"x-top-items": "3"})
            assert reply.status == 200, reply.body
            return (
                None if FEATURES_MISSING.decode() in reply.headers else json.loads(reply.body)["outputs"]["item_ids"][0]
            )

        for user in (0, 7, 24):
            history = histories[f"followed:h:{user}".encode()]["item"]
            alone = until(lambda user=user: top({"user": [user]}))
            assert alone == top({"user": [user], "h.item": [history]})


class NamedSteps(Steps):
    """The same, whose users are texts."""

    def rows(self, rows, **named):
        found = super().rows(rows, **named)
        return found | {"user": np.array([f"person-{user}@shop" for user in found["user"]])}


@needs_redis
def test_an_erased_user_leaves_histories_checkpoints_and_the_store(tmp_path, server):
    events = NamedSteps(tmp_path / "events")
    events.send(400)
    run = stored(tmp_path, server, "string")
    run.full()
    events.send(200)
    stream_to(run, 600)
    key, other = b"person-7@shop", b"person-8@shop"

    def files_with(key):
        folder = tmp_path / "repository" / ".checkpoints"
        return sum(key in path.read_bytes() for path in folder.rglob("*") if path.is_file())

    def in_store(key):
        return b"followed:h:" + key in served(server)

    before = files_with(other)
    assert files_with(key)
    assert in_store(key)
    erasures = Erasures.of_model(tmp_path / "repository", "followed")
    # What the user does after that is known again: no rows come meanwhile.
    erasures.ask(key.decode())
    run._checkpoints.erase_asked(run.trainer, run.state, lambda: [1])
    assert erasures.asked() == {}
    assert files_with(key) == 0
    assert not in_store(key)
    assert files_with(other) >= 1 <= before
    assert in_store(other)
    # A run that resumes learns on, and what the user does from now on is a new history.
    again = stored(tmp_path, server, "string")
    events.send(200)
    assert stream_to(again, 800)[-1].startswith("1.")
    whole, now = learned(events)[b"followed:h:" + key]["item"], served(server)[b"followed:h:" + key]["item"]
    assert whole[-len(now) :] == now
