"""Reports about an engine's models: what they count, and that people and machines can read them."""

import json

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import Expired
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository import TrainerReport, TrainerState
from freshet_serving.processor.versions.overview import model_stats, version_stats
from tests.processor.engines import USERS, request
from tests.support.packages import make_delta, write_package


def test_engine_without_models_reports_none(tmp_path):
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        assert model_stats(processor.host) == version_stats(processor.host) == []
        assert processor.info()["models"] == {}


def test_statistics_count_requests_rows_and_deltas(root, open_processor, tmp_path):
    clock = FakeClock()
    processor = open_processor(clock, sessions=1)
    processor.process(request([1, 2, 3, 999]))
    with pytest.raises(Expired):
        processor.process(request([1], timeout_s=0.0))
    delta = make_delta(1, [1, 2], [3], event_time=(5.0, 1_699_999_000.0))
    object.__setattr__(delta, "published_at", clock.unix_s() - 1.5)
    write_delta(tmp_path / "upload", delta)
    processor.apply_delta("small", data=(tmp_path / "upload").read_bytes())
    (stats,) = model_stats(processor.host)
    assert (stats.model, stats.generation) == ("small", Generation(1, 1))
    group = processor.host.group_stats()["default"]
    assert (group.work.requests, group.work.rows, group.work.failed, group.work.batches) == (1, 4, 0, 1)
    assert group.queue_rows == 0
    assert (stats.delta_count, stats.delta_rows) == (1, 2)
    assert stats.last_freshness_s == pytest.approx(1.5)
    assert stats.published_at == pytest.approx(clock.unix_s() - 1.5)
    assert stats.event_time == 1_699_999_000.0
    # Four users; tags of rows 0..3: none, a, a zz, a zz b. Unseen: user 999, zz twice.
    assert (stats.lookups, stats.misses) == (4 + 6, 1 + 2)


def test_info_is_json_with_the_state_of_everything(root, open_processor):
    write_delta(root / "small" / "1" / "deltas" / "1.safetensors", make_delta(1, [1], dense_seed=1))
    write_package(root, 2, users=USERS)
    processor = open_processor()
    processor.host.set_label("small", "previous", 1)
    info = json.loads(json.dumps(processor.info(), allow_nan=False))
    assert info["ready"]
    assert info["sessions"] == 2
    small = info["models"]["small"]
    assert small["generation"] == "2.0"
    assert small["labels"] == {"previous": 1}
    assert [v["version"] for v in small["versions"]] == [2, 1]
    assert small["served"]["1"]["generation"] == "1.1"
    assert small["served"]["2"]["tables"]["user"] == {"rows": 20, "dim": 4}
    assert small["served"]["2"]["buckets"].keys() == {"1", "4", "16"}
    assert str(root) not in json.dumps(info)


def test_report_of_a_model_has_its_trainer(root, open_processor):
    clock = FakeClock()
    processor = open_processor(clock)
    assert processor.info()["models"]["small"]["trainer"] is None
    report = TrainerReport("0badcafe", TrainerState.RUNNING, 1, 10.0, rows=500, held_out={"auc": 0.75})
    processor.host.repository.keep_trainer("small", report.dump())
    clock.advance(1.0)
    processor.poll()
    clock.advance(660.0)
    trainer = json.loads(json.dumps(processor.info()))["models"]["small"]["trainer"]
    assert (trainer["state"], trainer["rows"], trainer["held_out"]) == ("running", 500, {"auc": 0.75})
    assert (trainer["age_s"], trainer["silent"], trainer["problem"]) == (660.0, True, "trainer silent for 11 min")
