"""The example that converts libsvm files, as its user runs it, and what training reads of the table."""

import gzip
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from tests.models.data.sources import joined

PROGRAM = Path(__file__).parents[1] / "examples" / "libsvm_to_parquet.py"
TEXT = "+1 3:1 17:1\n-1\t5:1  # said so\n0 2:0.25 3:1 9:1.0\n1\n0.5 9223372036854775807:1\n"


def arguments(folder, text):
    (folder / "a.svm.gz").write_bytes(gzip.compress(text.encode()))
    return [str(PROGRAM), str(folder / "a.svm.gz"), str(folder / "a.parquet")]


def test_indices_are_ids_and_named_ones_are_numbers(tmp_path):
    subprocess.run([sys.executable, *arguments(tmp_path, TEXT), "2"], check=True, timeout=60)
    data = DataConfig(str(tmp_path / "a.parquet"), label="label")
    source = open_source(data, [Field("features", "ids"), Field("2", "float")])
    assert joined(list(source.batches(2))) == {
        "features": [[3, 17], [5], [3, 9], [], [2**63 - 1]],
        "2": [0, 0, 0.25, 0, 0],
        "label": [1, 0, 0, 1, 0.5],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3:1\n0 4:0.5\n", "line 2: expected label index:value ..., got '0 4:0.5': 4:0.5 has another value than 1"),
        ("1 3:1\nx 4:1\n", "line 2: expected label index:value ..., got 'x 4:1'"),
        ("1 0:4:1\n", "line 1: expected label index:value ..., got '1 0:4:1'"),
        ("1 3:1\n\n", "line 2: expected label index:value ..., got ''"),
    ],
)
def test_malformed_line_is_refused_by_its_number(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(sys, "argv", arguments(tmp_path, text))
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert refused.value.code.startswith(message)
