import gzip

import numpy as np
import pytest

from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import check_batches, joined

TEXT = "+1 3:1 17:1\n-1\t5:1  # said so\n0 2:0.25 3:1 9:1.0\n\n1\n0.5 9223372036854775807:1\n"
IDS = Field("features", "ids")


def opened(path, text=TEXT, wanted=()):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return open_source(DataConfig(str(path)), list(wanted))


@pytest.mark.parametrize("name", ["a.svm", "a.libsvm.gz"])
def test_indices_are_ids_and_selected_ones_are_numbers(tmp_path, name):
    source = opened(tmp_path / name, wanted=[IDS, Field("2", "float")])

    assert joined(list(source.batches(2))) == {
        "features": [[3, 17], [5], [3, 9], [], [2**63 - 1]],
        "2": [0, 0, 0.25, 0, 0],
        "label": [1, 0, 0, 1, 0.5],
    }
    check_batches(source, 2, 5)


def test_all_indices_are_ids_when_no_feature_is_named(tmp_path):
    assert default_features("libsvm", "") == {"features": {"kind": "ids", "dim": 16}}
    assert joined(list(opened(tmp_path / "a.svm", "1 1:1 2:1\n").batches(9)))["features"] == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 3:1\n0 4:0.5\n",
            'expected the value 1 for an id, got 4:0.5 at row 1 of a.svm; a [features.4] with kind = "float"',
        ),
        ("1 3:1\n0 4:nan\n", "expected the value 1 for an id, got 4:nan at row 1"),
        ("1 3:1\nx 4:1\n", "expected a label, got 'x' at row 1 of a.svm"),
        ("1 3:1\n# nothing\n", "expected a label, got '' at row 1 of a.svm"),
        ("1 3:1\n2 4:1\n", "column 'label': expected a label from 0 to 1, got 2.0 at row 1 of a.svm"),
        ("1 3:1\n1 4\n", "expected index:value, got '4' at row 1 of a.svm"),
        ("1 3:1 5:1\n1 0:4:1\n", "expected index:value, got '0:4:1' at row 1 of a.svm"),
        ("1 3:1\n1 qid:4 3:1\n", "expected an index, got 'qid' at row 1 of a.svm"),
        ("1 3:1\n1 3:a\n", "expected a value, got 'a' at row 1 of a.svm"),
        ("1 3:1\n1 :\n", "expected an index, got '' at row 1 of a.svm"),
        ("1 99999999999999999999:1\n", "expected an index, got '99999999999999999999' at row 0 of a.svm"),
        ("", "a.svm: expected rows, got an empty"),
        ("1 3:1\n1 \x1f\n", "a.svm: expected 1 columns, got 2 at row 1"),
    ],
)
def test_malformed_line_is_refused_by_its_row(tmp_path, text, message):
    with pytest.raises(BadInput) as caught:
        list(opened(tmp_path / "a.svm", text).batches(9))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_missing_column_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"features\.user: expected 'features', or an index whose value is a float, in a\.svm"
    ):
        opened(tmp_path / "a.svm", wanted=[Field("user", "id")])
    with pytest.raises(BadInput, match=r"features\.3: expected strings for kind 'string', got a column of type double"):
        opened(tmp_path / "a.svm", wanted=[Field("3", "string")])


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path):
    random, refused = np.random.default_rng(0), []
    for _ in range(60):
        raw = bytearray((TEXT * 3).encode())
        for at in random.integers(0, len(raw), random.integers(1, 4)):
            raw[at] = random.integers(0, 256)
        (tmp_path / "a.svm").write_bytes(raw)
        try:
            list(open_source(DataConfig(str(tmp_path / "a.svm")), [IDS, Field("2", "float")]).batches(4))
        except BadInput as error:
            refused.append(str(error))
    assert refused
    assert not any("\n" in line for line in refused)
