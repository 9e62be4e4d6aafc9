"""A user's requests in recordings: gone from every file, queued or written; those of others stay as they were."""

import threading

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="recording needs pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig  # noqa: E402
from freshet_serving.processor.versions.erasure import ErasedUser  # noqa: E402
from freshet_serving.serving.extensions.recorder import request_recorder as recording  # noqa: E402
from freshet_serving.serving.extensions.recorder.recording_erasure import erase_recorded  # noqa: E402
from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder, read_requests  # noqa: E402
from tests.support.counters import counted  # noqa: E402
from tests.support.packages import make_inputs, manifest, write_package  # noqa: E402

USER = 7_777_777_777_777


@pytest.fixture
def processor(tmp_path):
    write_package(tmp_path / "repository", users=range(20))
    with Processor.initialize(ProcessorConfig(repository=str(tmp_path / "repository"), sessions=1)) as processor:
        yield processor


@pytest.fixture
def recorder(tmp_path, processor):
    made = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    processor.predictor.observers.add(made)
    yield made
    made.close()


def user(key=str(USER), model="small", name="user"):
    return ErasedUser(model, (name,), key)


def ask(processor, *users):
    processor.process(PredictRequest("small", make_inputs(list(users), seed=users[0] % 100)))


def recorded(folder):
    requests = read_requests(str(folder), "small", manifest().inputs, 1000)
    return sorted(tuple(request["user"].tolist()) for request in requests)


def scan(folder):
    """Whether the id is in what any file holds, whatever its columns are."""
    return any(USER in column.to_pylist() for path in folder.iterdir() for column in pq.read_table(path).itercolumns())


def test_queued_and_written_requests_are_gone_and_others_are_whole(tmp_path, processor, recorder, monkeypatch):
    folder = tmp_path / "recordings"
    monkeypatch.setattr(recording, "GROUP_ROWS", 5)
    ask(processor, 1, 2, 3)
    ask(processor, 4, USER)
    assert recorder.erase_user(user(model="other")) == {"recorded_requests": 0}
    ask(processor, USER, 5, 6)
    ask(processor, 7)
    processor.close()
    assert recorder.erase_user(user()) == {"recorded_requests": 2}
    assert recorded(folder) == [(1, 2, 3), (7,)]
    assert not scan(folder)
    recorder.close()
    assert recorded(folder) == [(1, 2, 3), (7,)]
    assert recorder.erase_user(user()) == {"recorded_requests": 0}


def test_file_of_one_user_alone_is_removed(tmp_path, processor, recorder):
    ask(processor, USER)
    processor.close()
    assert recorder.erase_user(user()) == {"recorded_requests": 1}
    assert list((tmp_path / "recordings").iterdir()) == []


def test_request_that_is_being_answered_is_not_recorded(tmp_path, processor, recorder):
    replica = processor.predictor.replica("small")
    inputs = make_inputs([USER])
    bound = replica.plan.bind_inputs(inputs)
    done = recorder(PredictRequest("small", inputs), replica, bound, lambda result: None)
    recorder.erase_user(user())
    done(processor.process(PredictRequest("small", make_inputs([1]))))
    recorder.close()
    assert counted(recorder)["dropped"] == 1
    assert recorded(tmp_path / "recordings") == [(1,)]


def test_user_key_that_is_sent_once_counts_for_all_rows(tmp_path, processor, recorder):
    inputs = make_inputs([USER, 1, 2])
    inputs["user"] = np.array([USER])
    processor.process(PredictRequest("small", inputs))
    ask(processor, 3)
    processor.close()
    assert recorder.erase_user(user()) == {"recorded_requests": 1}
    assert recorded(tmp_path / "recordings") == [(3,)]


def test_recordings_without_the_key_and_other_files_stay(tmp_path, processor, recorder):
    ask(processor, USER)
    processor.close()
    recorder.close()
    folder = tmp_path / "recordings"
    (path,) = folder.iterdir()
    (folder / "broken.parquet").write_bytes(b"PAR1 no parquet")
    pq.write_table(pa.table({"user": [USER]}), folder / "foreign.parquet")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert erase_recorded(folder, user(name="other_input")) == 0
    assert erase_recorded(folder, user("ann")) == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert erase_recorded(folder, user()) == 1
    assert set(folder.iterdir()) == before.keys() - {path}


def test_processes_that_erase_at_once_count_each_request_once(tmp_path, processor, recorder):
    for _ in range(6):
        ask(processor, USER)
        ask(processor, 1)
        recorder.erase_user(user(model="other"))
    processor.close()
    recorder.close()
    counts = []
    threads = [
        threading.Thread(target=lambda: counts.append(erase_recorded(tmp_path / "recordings", user())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 6
    assert recorded(tmp_path / "recordings") == [(1,)] * 6


def test_what_an_interrupted_erasure_left_is_removed_by_the_next(tmp_path):
    (tmp_path / ".small-w0-1-1.erased").write_bytes(b"half")
    assert erase_recorded(tmp_path, user()) == 0
    assert list(tmp_path.iterdir()) == []
