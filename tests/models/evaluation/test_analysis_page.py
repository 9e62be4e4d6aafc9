import html.parser

import numpy as np

from freshet_serving.models.evaluation.analysis_page import format_nbytes, page
from freshet_serving.models.evaluation.changed_rows import ChangedRows
from freshet_serving.models.evaluation.row_layers import RowChunk
from freshet_serving.models.evaluation.table_summary import TableSummary


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.text = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data)


def summary(name):
    made = TableSummary(name, 2, "int8", 100, file_nbytes=3_100_000, memory_nbytes=12, slots_nbytes=0)
    rows = np.random.default_rng(0).standard_normal((500, 2)).astype(np.float32)
    made.add(RowChunk(np.arange(500), rows, np.arange(500), np.arange(500) % 100))
    return made


def test_page_is_self_contained_and_escapes_names():
    evil = "<script>alert(1)</script>&"
    told = page(
        evil,
        [evil],
        [summary(evil), TableSummary("empty", 2, "float32")],
        [ChangedRows(evil, 1, 2, 3, [(-7, 0.5, 1, 2)])],
    )
    read = Tags()
    read.feed(told)
    assert not read.tags & {"script", "link", "img", "iframe", "object"}
    assert read.addresses == []
    assert "http" not in told
    assert read.text.count(evil) == 5
    assert "-7" in read.text
    assert "1 rows were added, 2 removed, 3 changed." in read.text
    assert {"svg", "rect"} <= read.tags


def test_byte_sizes_are_shown_in_readable_units():
    assert [format_nbytes(n) for n in (0, 1, 999, 1000, 3_140_000, 10**18)] == [
        "",
        "1 B",
        "999 B",
        "1 kB",
        "3.14 MB",
        "1e+06 TB",
    ]
