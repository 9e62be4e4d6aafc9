"""A worker process as the supervisor sees it, without the process."""

from types import SimpleNamespace

from freshet_serving.serving.workers import worker_process
from freshet_serving.serving.workers.worker_process import WorkerProcess


def test_heartbeat_is_any_message_or_beat(monkeypatch):
    now_s, beats = [100.0], [0]
    worker = WorkerProcess.__new__(WorkerProcess)
    worker.heard_s = worker._moved_s = 90.0
    worker._beats, worker._seen = lambda: beats[0], 0
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert worker.heartbeat_age_s() == 10.0
    beats[0] += 1
    assert worker.heartbeat_age_s() == 0.0
    now_s[0] = 105.0
    assert worker.heartbeat_age_s() == 5.0
    worker.heard_s = 104.0
    assert worker.heartbeat_age_s() == 1.0
