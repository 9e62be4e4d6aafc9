"""`make -C loadtest siege`, the part about sources: its hostile files, its pages of listings, its report."""

import stat

import pyarrow.parquet as pq

from tests.faults.hostile_sources import FILES, Files, endless_page, repeated_string
from tests.faults.source_siege import CASES, missed, page
from tests.models.streams.recordings import outcomes

LINE = {
    "name": "a store",
    "said": "a delta is served meanwhile",
    "beyond": "",
    "p99_ms": {"quiet": 2.0, "under": 5.0},
    "more_nbytes": [3_000_000],
    "lost": 0,
    "failed": 0,
}


def test_report_names_what_is_missed():
    assert missed(LINE) == []
    slow = {**LINE, "p99_ms": {"quiet": 2.0, "under": 6.1}, "more_nbytes": [100_000_001, 5], "lost": 1, "failed": 2}
    assert missed({**slow, "beyond": "late"}) == ["late", "p99", "memory", "lost", "failed"]
    text = page([LINE, slow], 5.0)
    assert "| a store | a delta is served meanwhile | 2.0 ms | 5.0 ms | 2.5 | 3 MB |  | 0 | 0 |  |" in text
    assert "| 6.1 ms | 3.0 | 100 MB | 0 MB | 1 | 2 | p99, memory, lost, failed |" in text


def test_memory_of_the_reader_beside_is_no_miss():
    assert missed({**LINE, "more_nbytes": [0, 900_000_000]}) == []


def test_hostile_files_come_in_turn_and_whole(tmp_path):
    (tmp_path / "folder").mkdir()
    bomb = outcomes([("a", 0, 0.0)])
    files = Files(tmp_path / "folder", tmp_path / "aside", "{:02}".format, bomb)
    for _ in range(2 * len(FILES) + 2):
        files.put()
    kinds = sorted((tmp_path / "folder").iterdir())
    assert len(kinds) == files.count == 2 * len(FILES) + 2
    assert stat.S_ISFIFO(kinds[0].stat().st_mode)
    assert kinds[1].readlink() == kinds[1]
    assert pq.read_table(kinds[len(FILES)]).equals(bomb)


def test_bomb_is_small_on_disk(tmp_path):
    strings = repeated_string()
    assert len(strings) * len(strings.dictionary[0].as_py()) == 2_000_000_000
    assert strings.nbytes < 200_000


def test_each_page_of_an_endless_listing_is_new():
    pages = [endless_page() for _ in range(3)]
    assert len(set(pages)) == 3
    assert all(b"<IsTruncated>true</IsTruncated>" in page for page in pages)


def test_every_kind_of_source_has_a_case():
    for word in ("recordings", "Parquet", "store", "Redis", "gRPC"):
        assert any(word in name for name in CASES)
