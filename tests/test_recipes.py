"""The recipes of docs/how-to/retrain-nightly.md do what the page says, with their programs replaced by recorders."""

import ast
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "retrain-nightly.md").read_text()
TRAIN = ["train", "--config", "/etc/freshet/train.toml", "--new-version", "--from-scratch"]


def block(heading, kind=""):
    """The first block of a section."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.search(rf"^```{kind}[^\n]*\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[1]


class Machine:
    """A folder that stands for a machine, with the programs that recipes call."""

    def __init__(self, folder):
        self.folder, self.calls = folder, folder / "calls"
        self.calls.touch()
        for name in ("bin", "lib", "log"):
            (folder / name).mkdir()

    def program(self, name, does):
        """Install a program that records its arguments, then does something."""
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{does}\n')
        path.chmod(0o755)

    def start(self, shell, script):
        script = script.replace("/var/lib/freshet", f"{self.folder}/lib").replace(
            "/var/log/freshet", f"{self.folder}/log"
        )
        paths = f"{self.folder}/bin:/usr/bin:/bin"
        own = {"PATH": paths, "ADMIN": "http://admin", "FRESHET_ADMIN_TOKEN": "secret"}
        pipe = subprocess.PIPE
        return subprocess.Popen([shell, "-c", script], env=own, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

    def run(self, shell, script):
        with self.start(shell, script) as process:
            process.communicate(timeout=30)
        return process.returncode

    def recorded(self):
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def cron_command():
    """The schedule, the user and the command of the recipe, as cron splits a line of /etc/cron.d."""
    line = block("cron").splitlines()[-1]
    minute, hour, day, month, weekday, user, command = line.split(maxsplit=6)
    assert (minute, hour, day, month, weekday, user) == ("0", "3", "*", "*", "*", "freshet")
    # cron would end the command there.
    assert "%" not in command
    return command


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed: apt-get install util-linux")
@pytest.mark.parametrize("code", [0, 2, 3])
def test_cron_runs_the_command_and_keeps_its_output_and_code(machine, code):
    machine.program("freshet", f"echo said; echo told >&2; exit {code}")
    assert machine.run("sh", cron_command()) == code
    assert machine.recorded() == [" ".join(["freshet", *TRAIN])]
    assert (machine.folder / "log" / "retrain.log").read_text() == "said\ntold\n"


@pytest.mark.skipif(not shutil.which("flock"), reason="flock is not installed: apt-get install util-linux")
def test_cron_does_not_begin_a_second_night_beside_the_first(machine):
    machine.program("freshet", "")
    lock = machine.folder / "lib" / "retrain.lock"
    with subprocess.Popen(
        ["flock", lock, "sh", "-c", "echo locked; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout.readline() == b"locked\n"
        assert machine.run("sh", cron_command()) == 1
        first.communicate(b"\n", timeout=30)
    assert machine.recorded() == []
    assert machine.run("sh", cron_command()) == 0


def test_canary_asks_until_the_published_version_takes_the_label(machine):
    machine.program("freshet", "echo 'ctr 8.0 is in /models; serve it with'; echo '  freshet serve /models'")
    # Refused until the version is loaded, which the second question finds.
    machine.program("curl", f"[ $(grep -c ^curl {machine.calls}) -gt 1 ]")
    machine.program("sleep", "")
    assert machine.run("bash", block("A canary first", "bash")) == 0
    trained, *asked = machine.recorded()
    assert trained.startswith("freshet train ")
    question = asked[0]
    assert [line.split()[0] for line in asked] == ["curl", "sleep", "curl"]
    assert '--json {"version": 8} http://admin/admin/models/ctr/labels/canary' in question
    assert "Authorization: Bearer secret" in question


def test_refused_night_moves_no_canary(machine):
    machine.program("freshet", "echo 'version 8 was refused' >&2; exit 3")
    machine.program("curl", "")
    assert machine.run("bash", block("A canary first", "bash")) == 3
    assert len(machine.recorded()) == 1


def test_airflow_runs_the_command_and_does_not_retry_a_refusal():
    (operator,) = [
        node
        for node in ast.walk(ast.parse(textwrap.dedent(block("Airflow", "python"))))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "KubernetesPodOperator"
    ]
    options = {option.arg: option.value for option in operator.keywords}
    assert ast.literal_eval(options["cmds"]) + ast.literal_eval(options["arguments"]) == ["freshet", *TRAIN]
    assert ast.literal_eval(options["skip_on_exit_code"]) == 3


def test_argo_runs_the_command_and_does_not_retry_a_refusal():
    spec = yaml.safe_load(block("Argo Workflows", "yaml"))["spec"]
    (template,) = spec["workflowSpec"]["templates"]
    assert template["name"] == spec["workflowSpec"]["entrypoint"]
    assert template["container"]["command"] == ["freshet", *TRAIN]
    assert template["retryStrategy"]["expression"] == "asInt(lastRetry.exitCode) != 3"
    assert spec["concurrencyPolicy"] == "Forbid"
