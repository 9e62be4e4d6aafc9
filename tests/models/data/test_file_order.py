"""Files in the order of the numbers in their names."""

import random

import pytest

from freshet_serving.models.data.file_order import in_order_of_numbers
from freshet_serving.models.data.files import find_files


@pytest.mark.parametrize(
    "names",
    [
        [f"part-{n}.parquet" for n in range(12)],
        ["2026-9-30/x.csv", "2026-10-2/x.csv", "2026-10-11/x.csv"],
        ["dt=9/part-2.csv", "dt=9/part-10.csv", "dt=10/part-1.csv"],
        ["001.csv", "01.csv", "1.csv", "2.csv", "a.csv", "a1.csv", "b.csv"],
        ["x-9999999999999999999999.csv", "x-10000000000000000000000.csv"],
    ],
)
def test_numbers_in_names_count(names):
    mixed = random.Random(0).sample(names, len(names))
    assert sorted(mixed, key=in_order_of_numbers) == names


@pytest.mark.parametrize("path", ["", "/part-*", "/**/part*"])
def test_folders_and_globs_are_read_in_that_order(tmp_path, path):
    for day in (9, 10):
        for part in (10, 2, 1):
            (tmp_path / f"day={day}").mkdir(exist_ok=True)
            (tmp_path / f"day={day}" / f"part-{part}").write_bytes(b"")
    found = find_files(f"{tmp_path / 'day=10' if path == '/part-*' else tmp_path}{path}")
    names = [str(file.relative_to(tmp_path)) for file in found]
    tenth = ["day=10/part-1", "day=10/part-2", "day=10/part-10"]
    assert names == (tenth if path == "/part-*" else [*(n.replace("=10", "=9") for n in tenth), *tenth])
