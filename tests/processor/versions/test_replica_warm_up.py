"""A version is warm before it serves: every bucket, on every session, with its recorded requests."""

import logging

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.repository import WARMUP, VersionReader, add_file, dump_warmup
from freshet_serving.processor.versions.overview import version_stats
from tests.support.packages import BUCKETS, make_inputs, write_package

USERS = range(20)


def buffers_of(processor):
    replica = processor.predictor.replica("small")
    return [*replica._buffer_pool, *replica._borrowed]


@pytest.mark.parametrize("options", [{"sessions": 3}, {"compute": "inline"}])
def test_every_session_runs_every_bucket_before_the_first_request(root, options):
    with Processor.initialize(ProcessorConfig(repository=str(root), **options)) as processor:
        found = buffers_of(processor)
        assert len(found) == options.get("sessions", 1)
        for buffers in found:
            assert {bucket for _, bucket in buffers._bound} == set(BUCKETS)
        assert version_stats(processor.host)[0].sketch.requests == 0
        assert processor.host.lookups(processor.host.model("small").pick()).sum() == 0
        before = [dict(buffers._bound) for buffers in found]
        processor.process(PredictRequest("small", make_inputs([1, 2])))
        assert [buffers._bound for buffers in found] == before
        assert len(buffers_of(processor)) == len(found)


def test_warmup_uses_the_recorded_requests(root, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "freshet.replica")
    requests = [make_inputs([n, n + 1], seed=n) for n in range(30)]
    add_file(VersionReader(root / "small" / "1"), WARMUP, dump_warmup(requests))
    seen, fill = [], SparsePlan.fill

    def watch(self, view, out):
        rows = zip(view.bound, view.spans.tolist())
        seen.append((len(out), [b.keep[0].values[s : s + n].tolist() for b, (s, n) in rows]))
        fill(self, view, out)

    monkeypatch.setattr(SparsePlan, "fill", watch)
    with Processor.initialize(ProcessorConfig(repository=str(root), sessions=2)):
        pass
    assert [rows for rows, _ in seen] == [16, 16, 16, 16, 4, 1, 16, 4, 1]
    assert {user for _, parts in seen[:4] for part in parts for user in part} == set(range(31))
    assert all(sum(map(len, parts)) == rows for rows, parts in seen)
    assert "small version 1 is warm: 30 requests, 3 buckets, 2 sessions" in caplog.text


def test_version_with_a_mismatched_warmup_file_is_refused(root):
    write_package(root, 2, users=USERS)
    add_file(
        VersionReader(root / "small" / "2"), WARMUP, dump_warmup([make_inputs([1]) | {"user": np.zeros(1, np.float32)}])
    )
    with Processor.initialize(ProcessorConfig(repository=str(root))) as processor:
        assert processor.predictor.replica("small").generation.version == 1
        (status, _) = processor.host.status("small")
        assert (status.version, status.state, status.error) == (2, "END", "input 'user': expected int64, got float32")


@pytest.mark.parametrize("value", [np.inf, 3.3e38])
def test_warmup_requests_with_non_finite_numbers_refuse_no_version(root, value):
    requests = [make_inputs([1]), make_inputs([2])]
    requests[1]["floats"][0, 0] = value
    add_file(VersionReader(root / "small" / "1"), WARMUP, dump_warmup(requests))
    with Processor.initialize(ProcessorConfig(repository=str(root))) as processor:
        reply = processor.process(PredictRequest("small", make_inputs([1])))
        assert np.isfinite(reply.outputs["score"]).all()
