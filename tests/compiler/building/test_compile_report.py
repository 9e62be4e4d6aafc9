"""The report of `freshet compile --report`, at the widths that people have."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from freshet_serving.compiler.building.calibrate import Calibration
from freshet_serving.compiler.building.compile_report import print_report
from freshet_serving.processor.package.manifest_entries import ExecutableEntry

BUCKETS = (1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
VARIANTS = (
    ("onnxruntime", "cpu", "float32"),
    ("onnxruntime", "cuda", "float32"),
    ("onnxruntime", "tensorrt", "float32"),
    ("openvino", "cpu", "float32"),
    ("openvino", "cpu", "bfloat16"),
    ("xla", "cpu", "float32"),
    ("tensorrt", "cuda", "float16"),
)
SKIPPED = "backend tensorrt: the library tensorrt is not installed: pip install and a longer line than eighty columns"


def report():
    """Seven variants of thirteen batch sizes; the fourth is the fastest of each."""
    measured = [
        ExecutableEntry(
            backend, target, b, "f", "s", [], precision, cost_us=123456.7 + n if n != 3 else 99, error=1e-7 * n
        )
        for n, (backend, target, precision) in enumerate(VARIANTS)
        for b in BUCKETS
    ]
    calibration = Calibration(measured, ["xla b1: off"], {"xla": 12.345}, {"openvino bfloat16": -1e-5})
    chosen = {e.bucket: e for e in measured if (e.backend, e.precision) == ("openvino", "float32")}
    manifest = SimpleNamespace(model="ctr", version=12)
    passes = ["dense layers: 1 changes, 1,000 FLOPs a row fewer"]
    return SimpleNamespace(
        notes=[], manifest=manifest, calibration=calibration, others={}, passes=passes, skipped=[SKIPPED], chosen=chosen
    )


def printed(width, terminal=False):
    out = io.StringIO()
    print_report(report(), Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_is_truncated_and_tables_fit_the_terminal(width):
    text = printed(width, terminal=True)

    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("123457 ") == len(BUCKETS)
    assert text.count("99*") == len(BUCKETS)
    for backend, _, precision in VARIANTS:
        assert backend in text
        assert precision == "float32" or precision in text


def test_wide_terminals_get_one_table_and_narrow_ones_several():
    assert [printed(width).count("rows a run") for width in (200, 80, 60)] == [1, 2, 3]


def test_piped_output_has_every_sentence_on_its_own_line():
    assert f"not compiled: {SKIPPED}" in printed(80).splitlines()
    assert f"not compiled: {SKIPPED}" not in printed(80, terminal=True).splitlines()
