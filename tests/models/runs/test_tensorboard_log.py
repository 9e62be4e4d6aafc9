import struct

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.runs.tensorboard_log import TensorBoardLog

pytestmark = pytest.mark.tensorflow


def test_scalars_are_readable_as_tensorboard_events(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.write(7, {"loss": 0.5, "rows a second": 1e6})
    log.write(8, {"loss": 0.25})
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []
    # TFRecord: length uint64, its checksum, the record, its checksum.
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        events.append(tf.compat.v1.Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    values = [(e.step, v.tag, tf.make_ndarray(v.tensor).item()) for e in events for v in e.summary.value]
    assert values == [(7, "loss", 0.5), (7, "rows a second", 1e6), (8, "loss", 0.25)]
    assert {v.metadata.plugin_data.plugin_name for e in events for v in e.summary.value} <= {"scalars", ""}
    assert events[1].summary.value[0].metadata.plugin_data.plugin_name == "scalars"


def test_unwritable_folder_raises_an_os_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        TensorBoardLog(tmp_path / "file" / "below").write(1, {"loss": 1.0})
