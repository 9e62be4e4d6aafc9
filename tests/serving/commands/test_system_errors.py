"""What the system refuses a command is one line and exit code 2, wherever it happens, and nothing committed is lost."""

import builtins
import errno
import os
import random
import shutil
import sys

import pytest

from freshet_serving.serving.commands import cli
from freshet_serving.serving.commands.system_errors import system_line

OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "link", "write")
ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.ENOTDIR)
CONFIG = """
[model]
name = "ctr"
hidden = [2]
[data]
path = "clicks.csv"
label = "clicked"
[features.user_id]
kind = "id"
dim = 2
[train]
epochs = 1
batch_rows = 64
[publish]
repository = "repository"
full_rows = 128
delta_rows = 64
"""


def test_line_has_file_reason_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "repository" / "ctr"))
    assert system_line(full) == ("repository/ctr: No space left on device; free some space and run the command again")
    renamed = OSError(errno.ENOTDIR, "Not a directory", "/a/temporary", None, "/a/model.json")
    assert system_line(renamed) == "/a/model.json: Not a directory; a file lies where a folder is expected"
    assert system_line(OSError(errno.EIO, "Input/output error")).startswith("the system refused: Input/output error")


def test_exceptions_of_libraries_are_known_by_the_words_of_the_system():
    class ResourceExhaustedError(Exception):
        pass

    text = "repository/ctr/1/graph/variables; No space left on device\n\t [Op:SaveV2]"
    line = system_line(ResourceExhaustedError(text))
    assert line == (
        "repository/ctr/1/graph/variables: No space left on device; free some space and run the command again"
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("user"), AssertionError(), BrokenPipeError(32, "Broken pipe")]
)
def test_mistakes_of_ours_keep_their_traceback(error):
    assert system_line(error) is None


class Faults:
    """Counts the system calls that touch a folder, and has one of them fail."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.count, self.at, self.number = str(folder), 0, None, errno.ENOSPC
        self.hit = ""
        for name in OPERATIONS:
            if name != "write":
                monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._wrapped("open", builtins.open))

    def _wrapped(self, name, function):
        def call(*arguments, **keywords):
            path = arguments[0] if arguments else ""
            if name == "fsync" or (isinstance(path, (str, os.PathLike)) and self._ours(path)):
                self.count += 1
                if self.count == self.at:
                    self.hit = name
                    raise OSError(self.number, os.strerror(self.number), None if name == "fsync" else os.fspath(path))
            return function(*arguments, **keywords)

        return call

    def _ours(self, path):
        return os.path.abspath(os.fspath(path)).startswith(self.folder)


@pytest.fixture
def training(tmp_path, monkeypatch):
    """run(at, number): `freshet train` of a tiny table, whose call `at` fails; (exit code, faults)."""
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    monkeypatch.chdir(tmp_path)
    rows = random.Random(1)
    (tmp_path / "clicks.csv").write_text(
        "user_id,clicked\n" + "".join(f"{rows.randrange(20)},{rows.randrange(2)}\n" for _ in range(256))
    )
    (tmp_path / "train.toml").write_text(CONFIG)
    faults = Faults(tmp_path, monkeypatch)

    def run(at=None, number=errno.ENOSPC):
        faults.count, faults.at, faults.number, faults.hit = 0, at, number, ""
        monkeypatch.setattr(sys, "argv", ["freshet", "train", "--config", "train.toml"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, faults

    return run


def swept(training, tmp_path, capsys, points):
    """Fail a first run at so many points, spread over all; a second run completes each."""
    code, faults = training()
    assert code == 0
    calls = faults.count
    capsys.readouterr()
    for number in range(points):
        shutil.rmtree(tmp_path / "repository")
        at = 1 + (calls - 1) * number // max(1, points - 1)
        error = ERRORS[number % len(ERRORS)]
        code, faults = training(at, error)
        printed = capsys.readouterr().err
        where = f"call {at} of {calls}, {faults.hit}, {os.strerror(error)}: {printed[-500:]}"
        assert "Traceback" not in printed, where
        if code != 0:
            assert code == 2, where
            lines = [line for line in printed.splitlines() if line.startswith("freshet: ")]
            assert len(lines) == 1, where
        code, _ = training()
        assert code == 0, f"after {where}"
        capsys.readouterr()


@pytest.mark.long
def test_failing_system_call_ends_training_in_one_line(training, tmp_path, capsys):
    swept(training, tmp_path, capsys, points=12)


def test_repository_that_is_a_file_is_one_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.csv").write_text("user_id,clicked\n" + "1,0\n2,1\n" * 60)
    (tmp_path / "train.toml").write_text(CONFIG)
    (tmp_path / "repository").write_text("")
    monkeypatch.setattr(sys, "argv", ["freshet", "train", "--config", "train.toml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
