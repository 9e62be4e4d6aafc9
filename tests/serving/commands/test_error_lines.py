"""What the system refuses a command is one line and exit code 2, wherever it happens, and nothing committed is lost."""

import errno
import os
import random
import shutil
import sys

import pytest

from freshet_serving.serving.commands import cli
from freshet_serving.serving.commands.cli import main
from freshet_serving.serving.commands.error_lines import system_line
from tests.serving.commands.test_repository_commands import write_chain
from tests.support.failing_calls import FailingCalls

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

HISTORY = """
[features.item_id]
kind = "id"
dim = 2
side = "item"
[features.price]
kind = "float"
side = "item"
[features.last]
kind = "id"
from = "h.item"
take = -1
[sequences.h]
columns = { item = "item_id" }
tables = { item = "item_id" }
from_events = "user_id"
[entities.item]
key = "item_id"
path = "items.csv"
columns = ["price"]
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


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """sweep(arguments, points, forget): fail a command at so many of its calls, spread over all; each time a second
    run completes it. forget: undo what a run has made."""
    monkeypatch.chdir(tmp_path)
    calls_made = FailingCalls(tmp_path, monkeypatch)

    def run(arguments, at=None, number=errno.ENOSPC):
        calls_made.begin(at, number)
        monkeypatch.setattr(sys, "argv", ["freshet", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        calls_made.at = None
        return ended.value.code

    def swept(arguments, points, forget):
        forget()
        assert run(arguments) == 0, capsys.readouterr().err
        calls = calls_made.count
        assert calls > points
        capsys.readouterr()
        for number in range(points):
            forget()
            at = 1 + (calls - 1) * number // max(1, points - 1)
            error = ERRORS[number % len(ERRORS)]
            code = run(arguments, at, error)
            printed = capsys.readouterr().err
            where = f"call {at} of {calls}, {calls_made.hit}, {os.strerror(error)}: {printed[-500:]}"
            assert "Traceback" not in printed, where
            if code != 0:
                assert code == 2, where
                lines = [line for line in printed.splitlines() if line.startswith("freshet: ")]
                assert len(lines) == 1, where
            assert run(arguments) == 0, f"after {where}: {capsys.readouterr().err[-500:]}"
            capsys.readouterr()

    return swept


@pytest.fixture
def copied(tmp_path):
    """copied(repository): forget() that lays out this repository anew, as `repository`."""

    def prepare(repository):
        def forget():
            shutil.rmtree(tmp_path / "repository", ignore_errors=True)
            shutil.copytree(repository, tmp_path / "repository")

        return forget

    return prepare


@pytest.mark.long
@pytest.mark.parametrize("more", ["", HISTORY], ids=["rows", "histories"])
def test_failing_system_call_ends_training_in_one_line(sweep, tmp_path, more):
    pytest.importorskip("tensorflow", reason="training needs the train extra")
    rows = random.Random(1)
    lines = (f"{rows.randrange(20)},{rows.randrange(9)},{n},{rows.randrange(2)}\n" for n in range(256))
    (tmp_path / "clicks.csv").write_text("user_id,item_id,ts,clicked\n" + "".join(lines))
    (tmp_path / "items.csv").write_text("item_id,price\n" + "".join(f"{n},{n}.5\n" for n in range(9)))
    config = CONFIG if not more else CONFIG.replace('label = "clicked"', 'label = "clicked"\ntime = "ts"')
    (tmp_path / "train.toml").write_text(config + more)
    repository = tmp_path / "repository"
    sweep(["train", "--config", "train.toml"], 6, lambda: shutil.rmtree(repository, ignore_errors=True))


def test_failing_system_call_ends_import_in_one_line(sweep, tmp_path):
    pytest.importorskip("onnx", reason="needs the onnx extra")
    from tests.compiler.imports.onnx_native.native_models import GRU, GRU_WEIGHTS, spelled

    spelled(tmp_path / "gru.onnx", GRU, **GRU_WEIGHTS)
    arguments = ["import", "gru.onnx", "--name", "gru", "--repository", "repository"]
    sweep(arguments, 12, lambda: shutil.rmtree(tmp_path / "repository", ignore_errors=True))


@pytest.mark.long
def test_failing_system_call_ends_compilation_in_one_line(sweep, copied, tmp_path_factory):
    pytest.importorskip("tensorflow", reason="compiling needs the train extra")
    from freshet_serving.models.bench import write_model

    repository = tmp_path_factory.mktemp("written")
    write_model(repository, 10)
    arguments = ["compile", "bench", "--repository", "repository", "--backends", "onnxruntime", "--buckets", "1"]
    sweep(arguments, 5, copied(repository))


def test_failing_system_call_ends_a_compaction_in_one_line(sweep, copied, tmp_path_factory):
    repository = tmp_path_factory.mktemp("written")
    write_chain(repository, 3)
    sweep(["delta", "compact", "small", "--repository", "repository"], 12, copied(repository))


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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("trian", "'trian': no command of freshet (did you mean 'train'?)"),
        ("quux", "'quux': no command of freshet; freshet --help lists them"),
        ("delta lst m", "'lst': no command of freshet delta (did you mean 'list'?)"),
        ("serve --repositry r", "--repositry: no option of freshet serve (did you mean '--repository'?)"),
        ("evaluate --quux 1", "--quux: no option of freshet evaluate; freshet evaluate --help lists them"),
        ("serve --http-port abc", "--http-port: expected an integer, got 'abc'"),
        ("delta list m --repository r --version 1.5", "--version: expected an integer, got '1.5'"),
        ("evaluate --skip -1", "--skip: expected 0 or more, got '-1'"),
        ("train", "--config: expected by freshet train, got nothing; see freshet train --help"),
        ("delta apply", "model: expected by freshet delta apply, got nothing; see freshet delta apply --help"),
        ("train --config", "--config: Option '--config' requires an argument"),
        ("explain a b", "got unexpected extra argument"),
    ],
)
def test_command_line_mistake_gives_one_line_and_code_2(line, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["freshet", *line.split()])
    monkeypatch.delenv("FRESHET_REPOSITORY", raising=False)
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"freshet: {told}")
    assert printed.err.count("\n") == 1


def test_command_without_its_subcommand_prints_its_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["freshet", "delta"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "rollback" in capsys.readouterr().out
