"""What a shell is told when somebody presses TAB."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.commands.cli import app
from tests.support.packages import make_delta, write_package

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-c", "from freshet_serving.serving.commands.cli import app; app(prog_name='freshet')"]


@pytest.fixture
def repository(tmp_path):
    write_package(tmp_path, model="ctr")
    write_package(tmp_path, model="ctr", version=2)
    write_package(tmp_path, model="ads")
    (tmp_path / "$(touch x)").mkdir()
    (tmp_path / ".runs").mkdir()
    change_log = ChangeLog.of(Repository(tmp_path).version("ctr"))
    for step in (1, 2, 3):
        change_log.publish(replace(make_delta(step, [1], version=2), model="ctr"))
    return tmp_path


def asking(line, repository=None, shell="bash"):
    """The variables by which a shell asks what is offered for the last word of a line."""
    env = {**os.environ, "_FRESHET_COMPLETE": f"complete_{shell}"}
    env.pop("FRESHET_REPOSITORY", None)
    if repository is not None:
        env["FRESHET_REPOSITORY"] = str(repository)
    if shell == "bash":
        words = line.split(" ")
        env |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return env


def completed(line, repository=None, shell="bash"):
    """What a process of its own offers."""
    env = asking(line, repository, shell)
    done = subprocess.run(COMMAND, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def offered(monkeypatch, capsys):
    """What the same command offers in this process, in a hundredth of the time."""

    def ask(line, repository=None):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", asking(line, repository))
            with pytest.raises(SystemExit):
                app(prog_name="freshet")
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out.split()

    return ask


def test_commands_and_options_are_completed(offered):
    assert "inspect" in offered("freshet ins")
    assert offered("freshet repository prune --dry") == ["--dry-run"]
    # --help leaves it out.
    assert offered("freshet serve --undo") == ["--undo-depth"]


def test_models_of_the_given_repository_are_completed(offered, repository):
    assert offered(f"freshet inspect --repository {repository} ") == ["ads", "ctr"]
    assert offered("freshet delta rollback c", repository) == ["ctr"]
    assert offered("freshet repository prune --model a", repository) == ["ads"]


def test_reachable_rollback_generations_are_completed_newest_first(offered, repository):
    assert offered("freshet delta rollback ctr ", repository) == ["2.2", "2.1", "2.0"]
    assert offered("freshet delta rollback ctr 2.1", repository) == ["2.1"]


def test_unreadable_repository_completes_to_nothing(offered, repository):
    assert offered("freshet inspect ") == []
    assert offered("freshet inspect ", repository / "none") == []
    assert offered("freshet delta rollback nobody ", repository) == []
    (repository / "ctr" / "2" / "model.json").write_bytes(b"{")
    assert offered("freshet delta rollback ctr ", repository) == []


@pytest.mark.long
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_completions(repository, shell):
    assert "ctr" in " ".join(completed("freshet inspect c", repository, shell))


@pytest.mark.long
def test_bash_completes_a_model_with_the_generated_script(repository, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    command = tmp_path / "bin" / "freshet"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\ncd {ROOT}\nexec "{sys.executable}" -c "{COMMAND[2]}" "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(_FRESHET_COMPLETE=source_bash freshet)"\n'
        "function=\"$(complete -p freshet | sed 's/.*-F \\([^ ]*\\).*/\\1/')\"\n"
        "COMP_WORDS=(freshet inspect c) COMP_CWORD=2\n"
        '"$function" freshet c inspect\n'
        'echo "${COMPREPLY[@]}"\n'
    )
    env = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "FRESHET_REPOSITORY": str(repository)}
    done = subprocess.run([bash, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["ctr"], done.stderr
