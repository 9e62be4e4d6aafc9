import sys

import pytest

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extras import how_to_install
from tests.serving.commands.running import run


def test_compile_reports_the_backend_per_batch_size_and_skipped_ones(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="compiling needs the train extra")
    from freshet_serving.models.bench import write_model

    monkeypatch.setattr("freshet_serving.models.bench.HIDDEN", (8, 4))
    monkeypatch.setitem(sys.modules, "openvino", None)
    write_model(tmp_path, 10)
    chosen = (
        "compile",
        "bench",
        "--repository",
        str(tmp_path),
        "--backends",
        "onnxruntime,openvino",
        "--buckets",
        "1,4",
    )
    lines = run(*chosen).splitlines()
    assert lines[0].startswith(f"backend openvino: the library openvino is not installed: {how_to_install('openvino')}")
    assert lines[1].startswith("precision: only float32, because a lower one cannot be checked: give --data")
    assert lines[2].startswith("bench 1: 1: onnxruntime ")
    table = run(*chosen, "--report")
    assert "bench 1: us a run, one thread" in table
    assert "onnxruntime" in table
    assert "not compiled: backend openvino" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: not a version of a model"),
        (("m", "--buckets", "1;2"), "--buckets: expected batch sizes separated by commas, got '1;2'"),
        (("m", "--buckets", "1", "--sample", "s"), "--buckets, --sample: expected one of them, got both"),
    ],
)
def test_compile_refuses_unreadable_input(arguments, message):
    with pytest.raises(FreshetError, match=message):
        run("compile", *arguments)
