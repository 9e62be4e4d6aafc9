"""One recorded request by its id: the newest, whole, and whatever else lies in the folder."""

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="recording needs pyarrow")

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.serving.extensions.recorder import recorded_request as module
from freshet_serving.serving.extensions.recorder.recorded_request import find_recorded
from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder
from tests.support.packages import make_inputs, write_package


@pytest.fixture
def folder(tmp_path):
    """Forty requests in two files, the second of which has another one under the id r1."""
    write_package(tmp_path / "repository", users=range(20))
    for batch in range(2):
        with Processor.initialize(ProcessorConfig(repository=str(tmp_path / "repository"), sessions=1)) as processor:
            recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, f"w{batch}")
            processor.predictor.observers.add(recorder)
            for n in range(20):
                name = "r1" if n == 1 else f"r{batch}-{n}"
                inputs = make_inputs(range(n, n + 3), seed=100 * batch + n)
                processor.process(PredictRequest("small", inputs, request_id=name))
        recorder.close()
    return tmp_path / "recordings"


def test_recorded_request_is_found_with_inputs_scores_and_generation(folder):
    found = find_recorded(str(folder), "small", "r0-7")
    wanted = make_inputs(range(7, 10), seed=7)
    assert str(found.generation) == "1.0"
    assert found.inputs["user"].tolist() == [7, 8, 9]
    np.testing.assert_array_equal(found.inputs["floats"], wanted["floats"])
    assert found.inputs["tags"].values.tolist() == wanted["tags"].values.tolist()
    assert found.outputs["score"].shape == (3, 1)
    assert [i.name for i in found.inputs_of] == ["user", "tags", "floats"]
    assert found.time.startswith("20")
    assert "+00:00" in found.time


def test_newer_of_two_requests_with_one_id_is_found(folder):
    found = find_recorded(str(folder), "small", "r1")
    np.testing.assert_array_equal(found.inputs["floats"], make_inputs(range(1, 4), seed=101)["floats"])


def test_unrecorded_request_is_not_found(folder):
    for model, request_id in (("small", "r0-99"), ("small", ""), ("other", "r0-7"), ("small", "' or 1=1")):
        assert find_recorded(str(folder), model, request_id) is None
    assert find_recorded(str(folder / "nowhere"), "small", "r1") is None


def test_other_files_in_the_folder_are_ignored(folder):
    (folder / "small-x-1.parquet").write_bytes(b"PAR1 no parquet")
    (folder / "small-y-1.parquet").mkdir()
    assert find_recorded(str(folder), "small", "r0-7") is not None


def test_search_ends_within_its_time_limit(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_S", -1.0)
    assert find_recorded(str(folder), "small", "r0-7") is None
