"""The sample is a repository of its own, which grows by one recorded delta at a time and goes away."""

import json
import os
import tempfile
import threading

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.sample import replay as module
from freshet_serving.serving.sample.replay import MODEL, REQUEST, SAMPLE, SampleReplay, delta_of

MAX_NBYTES = 1_500_000
DOCUMENT = json.loads(REQUEST.read_text())


def scores(repository):
    """The generation and the scores of the stored request."""
    inputs = DOCUMENT["body"]["inputs"]
    columns = {name: np.array(inputs[name], np.int64) for name in ("user_id", "item_id", "hour")}
    columns |= {"category": Strings.of(inputs["category"]), "tags": Ragged.of(inputs["tags"])}
    columns["price"] = np.array(inputs["price"], np.float32)
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        reply = processor.process(PredictRequest(MODEL, columns))
        return str(reply.generation), reply.outputs["score"].ravel().tolist()


def finished(replay):
    """Add all deltas at once."""
    replay._ended.wait = lambda timeout_s: False
    replay._replay()
    return replay


@pytest.mark.unguarded("the deltas are read at once, as after a restart")
def test_stored_sample_scores_as_it_did_when_it_was_made():
    with SampleReplay() as replay:
        generation, first = scores(replay.repository)
        assert generation == "1.0"
        np.testing.assert_allclose(first, DOCUMENT["scores"]["first"], atol=1e-5)
        generation, last = scores(finished(replay).repository)
        assert generation == f"1.{len(replay.records)}"
        np.testing.assert_allclose(last, DOCUMENT["scores"]["last"], atol=1e-5)
        assert np.abs(np.subtract(first, last)).max() > 0.01, "deltas are to be seen"


def test_sample_is_small_and_lasts_for_minutes():
    assert SAMPLE.stat().st_size < MAX_NBYTES
    with SampleReplay() as replay:
        assert len(replay.records) * module.INTERVAL_S >= 180


def test_delta_is_there_before_its_record(monkeypatch):
    with SampleReplay() as replay:
        written = []
        monkeypatch.setattr(SampleReplay, "_write", lambda self, sample, name: written.append(name))
        finished(replay)
        assert written[:2] == ["deltas/1.safetensors", replay.records[0]]
        assert written[::2] == [delta_of(record) for record in written[1::2]]


def test_repository_goes_away_with_its_thread(caplog):
    before = set(threading.enumerate())
    replay = SampleReplay(interval_s=3600)
    with replay:
        with caplog.at_level("INFO", "freshet.sample"):
            replay.start(8501)
        assert "curl -i localhost:8501/v1/models/sample:predict -d '{" in caplog.text
        assert (replay.repository / MODEL / "1" / "model.json").is_file()
    assert not replay.repository.exists()
    assert set(threading.enumerate()) <= before


def test_shared_memory_serves_where_no_disk_can_be_written(monkeypatch, tmp_path):
    def refused(prefix, dir=None):
        if dir is None:
            raise FileNotFoundError("No usable temporary directory found")
        return mkdtemp(prefix=prefix, dir=dir)

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(module.tempfile, "mkdtemp", refused)
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    with SampleReplay() as replay:
        assert replay.repository.parent == tmp_path
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "missing")
    with pytest.raises(BadInput, match="set TMPDIR"):
        SampleReplay()


def test_full_disk_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "atomic_file", full)
    with pytest.raises(BadInput, match="No space left on device"):
        SampleReplay()
    assert os.listdir(tmp_path) == []


def test_disk_that_fills_up_later_ends_the_deltas_alone(monkeypatch, caplog):
    with SampleReplay() as replay:

        def full(self, sample, name):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(SampleReplay, "_write", full)
        with caplog.at_level("WARNING", "freshet.sample"):
            finished(replay)
        assert "no further deltas: No space left on device" in caplog.text
        assert scores(replay.repository)[0] == "1.0"
