"""Both wheels used as a newcomer would, in fresh environments.

Every line of README, docs and messages that tells somebody to install Freshet is run as it is written; then the server
is started from the wheel and asked by the client of the other one, over HTTP and gRPC, and a model is trained with the
extra. Takes minutes, and what the extras weigh.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What follows is the end of a line of code, of a quotation, or the comment beside a command.
LINE = re.compile(r"pip install (?:'freshet[\w-]*\[[\w,]+\]'|freshet[\w-]*|\./[\w/]+)")
# Gigabytes of CUDA: resolved, not installed.
RESOLVED_ONLY = re.compile(r"[\[,](gpu|tensorrt)[\],]")
TRAIN = """
[model]
name = "ctr"
[data]
path = "clicks.csv"
label = "clicked"
[features.user_id]
kind = "id"
[publish]
repository = "repository"
"""
ASK = """
import sys
from freshet_serving import Client
for address in sys.argv[1:]:
    with Client(address, timeout_s=10) as client:
        print(address.partition(":")[0], client.predict("ctr", {"user_id": [1, 2]}).outputs["score"].shape)
heavy = {"numba", "onnxruntime", "fastapi", "uvicorn"} & set(sys.modules)
assert not heavy, heavy
"""
PUBLISH = """
import sys
import time
import numpy as np
from freshet_serving import Publisher
publisher = Publisher("repository", "ctr")
table = publisher.manifest.tables[0].name
_, rows = publisher.served().rows(table, np.array([1]))
generation = publisher.publish({table: (np.array([1]), rows * np.float32(1.01))})
heavy = {"fastapi", "grpc", "httpx", "numba", "onnxruntime", "tensorflow", "uvicorn"} & set(sys.modules)
assert not heavy, heavy
from freshet_serving import Client
with Client(sys.argv[1], timeout_s=10) as client:
    until = time.monotonic() + 30
    while (served := client.predict("ctr", {"user_id": [1]}).generation) != str(generation):
        assert time.monotonic() < until, served
        time.sleep(0.05)
print("published and served:", generation)
"""
MOST_CLIENT_NBYTES = 40 << 20
"""Bytes that freshet-client brings beside numpy, which a trainer has."""


def requirement(line: str) -> str:
    """The name of what a line of dependencies asks for."""
    found = re.match(r"[\w-]+", line)
    assert found is not None, line
    return found[0]


def install_lines() -> list[str]:
    """Every `pip install freshet...` in what people read, as written; those of messages as they are printed where the
    distribution is installed rather than a checkout."""
    from freshet_serving.processor.extras import DISTRIBUTION, EXTRA_OF

    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    for room in ("freshet_serving", "serving", "models", "compiler", "processor"):
        texts.extend(path.read_text() for path in sorted((ROOT / room).rglob("*.py")))
    lines = {found for text in texts for found in LINE.findall(text) if "{" not in found}
    return sorted(lines | {f"pip install '{DISTRIBUTION}[{extra}]'" for extra in EXTRA_OF.values()})


class Environment:
    """A virtual environment of its own, that finds the two wheels among what it may install."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
        }

    def run(self, line: str, cwd: Path) -> str:
        """What a shell line printed; raises CalledProcessError."""
        print(f"$ {line}", flush=True)
        return subprocess.run(
            line, shell=True, cwd=cwd, env=self._env, check=True, text=True, stdout=subprocess.PIPE, timeout=1800
        ).stdout

    def nbytes(self, left_out: tuple[str, ...]) -> int:
        """Bytes of what is installed, without packages whose names begin so."""
        (site,) = self.bin.parent.glob("lib/python*/site-packages")
        kept = [entry for entry in site.iterdir() if not entry.name.startswith(left_out)]
        return sum(path.stat().st_size for entry in kept for path in (entry, *entry.rglob("*")) if path.is_file())

    def resolve(self, line: str, cwd: Path) -> None:
        """Has pip find all that a line would install."""
        self.run(f"{line} --dry-run 2>&1", cwd)

    def start(self, line: str, cwd: Path) -> subprocess.Popen[str]:
        print(f"$ {line} &", flush=True)
        return subprocess.Popen(shlex.split(line), cwd=cwd, env=self._env, text=True, stdout=subprocess.PIPE)


def use(work: Path, serving: Environment, client: Environment) -> None:
    """Trains, serves, asks and publishes, with nothing but the two wheels."""
    clicks = "user_id,clicked\n" + "".join(f"{i % 50},{i % 3 == 0:d}\n" for i in range(4000))
    (work / "clicks.csv").write_text(clicks)
    (work / "train.toml").write_text(TRAIN)
    (work / "ask.py").write_text(ASK)
    (work / "publish.py").write_text(PUBLISH)
    serving.run("freshet train --config train.toml", work)
    server = serving.start(
        f"{serving.bin}/freshet serve --repository repository --http-port 0 --grpc-port 0 --admin-port 0", work
    )
    try:
        assert server.stdout is not None
        addresses = ""
        for line in server.stdout:
            if found := re.search(r"ready in .* http=(\S+) grpc=(\S+)", line):
                addresses = f"http://{found[1]} grpc://{found[2]}"
                break
        assert addresses, "the server ended before it was ready"
        print(client.run(f"python ask.py {addresses}", work), end="")
        print(client.run(f"python publish.py {addresses.split()[0]}", work), end="")
    finally:
        server.terminate()
        server.wait(60)


def try_out(wheels: Path, work: Path) -> None:
    """Runs it all, in a folder that is empty. Raises CalledProcessError."""
    lines = install_lines()
    for number, line in enumerate(lines):
        environment = Environment(work / f"env{number}", wheels)
        if RESOLVED_ONLY.search(line):
            environment.resolve(line, ROOT)
        else:
            environment.run(line, ROOT)
            environment.run("python -c 'import freshet_serving'", work)
        shutil.rmtree(work / f"env{number}")
    serving, client = (Environment(work / name, wheels) for name in ("serving", "client"))
    serving.run("pip install 'freshet-serving[train]'", work)
    client.run("pip install freshet-client", work)
    brought = client.nbytes(("_distutils_hack", "numpy", "pip", "pkg_resources", "setuptools"))
    assert brought <= MOST_CLIENT_NBYTES, f"freshet-client: at most {MOST_CLIENT_NBYTES} bytes wanted, got {brought}"
    use(work, serving, client)
    # Beside each other, as somebody's own dependencies may have it.
    serving.run("pip install freshet-client", work)
    use(work, serving, serving)
    print(f"{len(lines)} lines that install, run; served, asked and trained from the wheels")
