"""Which interpreters are measured, and what the page shows."""

import os

from loadtest.bench import cold_start


def test_oldest_release_of_each_version_is_measured(tmp_path, monkeypatch):
    releases = {"3.11.7": tmp_path / "a", "3.11.2": tmp_path / "b", "3.12.1": tmp_path / "b", "3.14.0": tmp_path / "a"}
    for release, folder in releases.items():
        folder.mkdir(exist_ok=True)
        python = folder / f"python{release.rpartition('.')[0]}"
        python.write_text(f"#!/bin/sh\necho {release}\n")
        python.chmod(0o755)
    broken = tmp_path / "a" / "python3.13"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(os, "get_exec_path", lambda: [str(tmp_path / "a"), str(tmp_path / "b")])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cold_start.interpreters() == {
        "3.11": tmp_path / "b" / "python3.11",
        "3.12": tmp_path / "b" / "python3.12",
    }


def test_page_has_a_row_for_each_start():
    side = {
        "python": "3.11", "wheel": "now", "megabytes": 460, "wheel_megabytes": 4.25,
        "starts": [{"how": "first", "wall_s": 2.44, "cpu_s": 2.96}],
    }  # fmt: skip
    made = {"date": "2026-11-28", "command": "make -C loadtest cold-start"}
    text = cold_start.page({"machine": {"cores": 2, "cpu": "x"}, "origin": made, "sides": [side]})
    assert "| 3.11 | now | first | 2.4 | 3.0 |" in text
    assert "| 3.11 | now | 4.2 | 460 |" in text
