import errno
import os

import pytest

from freshet_serving.models.runs.run_folder import RunFolder


def test_folder_is_created_by_its_first_file(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b", 0.0, print)
    assert list(tmp_path.iterdir()) == []
    folder.append("x", "one\n")
    folder.append("x", "two\n")
    assert folder.write("y", "Zürich") == tmp_path / "a" / "b" / "19700101-000000" / "y"
    assert (folder.path / "x").read_text() == "one\ntwo\n"
    assert (folder.path / "y").read_text(encoding="utf-8") == "Zürich"

    second = RunFolder(tmp_path / "a" / "b", 0.4, print)
    second.append("x", "")
    assert second.path.name == "19700101-000000.2"


@pytest.mark.parametrize("where", ["open", "mkdir"])
def test_full_disk_is_logged_once_and_ends_nothing(tmp_path, monkeypatch, where):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    notes = []
    folder = RunFolder(tmp_path, 0.0, notes.append)
    monkeypatch.setattr("pathlib.Path.mkdir" if where == "mkdir" else "builtins.open", full)
    folder.append("x", "one")
    assert folder.write("y", "two") is None
    monkeypatch.undo()
    folder.append("x", "three")
    assert notes == ["cannot write the run's folder (No space left on device): training continues without it"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
