"""The image's process as the Dockerfile starts it, on this machine's files; `make image-check` builds the image."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.cold_start import others_can_run
from loadtest.load.launch import free_ports, port_options
from tests.image.container import Container
from tests.image.trial import NOBODY, ask_first, check_health

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(stage):
    """Return the (instruction, arguments) of a stage and of those that it begins with."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {text.split()[2]: text for text in stages}
    first, *lines = by_name[stage].splitlines()
    before = instructions(first.split()[0]) if first.split()[0] in by_name else []
    return before + [tuple(line.split(maxsplit=1)) for line in lines if re.match(r"[A-Z]+ ", line)]


def image_config(stage):
    """Return how the image of a stage is run, as an engine has it."""
    told = dict(instructions(stage))
    environment = next(arguments for name, arguments in instructions(stage) if name == "ENV")
    return {
        "Env": shlex.split(
            environment.replace("/opt/freshet/bin:$PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
        ),
        "WorkingDir": "/",
        "Entrypoint": json.loads(told["ENTRYPOINT"]),
        "Cmd": json.loads(told["CMD"]),
        "User": told["USER"],
        "Healthcheck": json.loads(told["HEALTHCHECK"].partition(" CMD ")[2]),
    }


@pytest.fixture
def machine_files(tmp_path):
    """The files of this machine, mounted for a container to make read-only."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("namespaces are made by root with unshare")
    if not others_can_run(Path(sys.executable), NOBODY):
        pytest.skip("another user cannot run this environment's Python")
    root = tmp_path / "root"
    root.mkdir()
    if subprocess.run(["mount", "--bind", "/", root], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)


@pytest.mark.parametrize("stage", ["serve", "serve-all", "train"])
def test_stage_copies_what_the_repository_has(stage):
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    text = DOCKERFILE.partition(f" AS {stage}\n")[0]
    copied = [name for names in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in names.split()]
    assert len(copied) > 5
    for name in copied:
        assert any(path == name or path.startswith(f"{name}/") for path in kept), name


@pytest.mark.long
def test_random_user_serves_the_sample_where_nothing_can_be_written(machine_files):
    ports, config = free_ports(3), image_config("serve")
    command = [*config["Cmd"], "--sample", *port_options(ports)]
    with Container(machine_files, config, command, user=NOBODY, read_only=True) as container:
        assert ask_first(container, ports[0]), container.output()
        assert check_health(container, config["Healthcheck"], ports[0]) == ""
        # PID 1 has no default for SIGTERM: it ends because it handles it.
        assert container.stop()[0] == 0
