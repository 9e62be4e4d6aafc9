"""`make -C loadtest cold-start`: what a first start costs from the built wheel, for each Python that is here.

For each interpreter a new environment with the wheel and nothing else; HOME and every cache are empty. `freshet serve`
runs until its first answer over HTTP: for the first time; again; as another user, who may write nowhere; and where the
wheel has no kernels for this machine, as on another processor or with another Numba. Seconds of processor time count
all processes of the server. With --base REVISION the wheel of an earlier commit runs beside it.

The model is that of `freshet bench model` with 1,000 rows a table, and that of `--sample` where a wheel has one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.load.launch import first_answer, free_ports, port_options, run_freshet
from loadtest.load.processes import cpu_s, tree
from loadtest.reports.report import RESULTS, begun, opening, store, table

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
TIMEOUT_S = 900
NOBODY = "12345:12345"
BODY = json.dumps({"inputs": {"ids": [[1] * 26], "floats": [[0.5] * 13]}}).encode()


Start = dict[str, Any]
"""One start, until its first answer. how: what was particular; wall_s; cpu_s: of all its processes."""


def interpreters() -> dict[str, Path]:
    """Return version -> interpreter, the oldest release of each version that is here."""
    candidates = [Path(folder, f"python{version}") for folder in os.get_exec_path() for version in PYTHONS]
    candidates += sorted(Path.home().glob(".pyenv/versions/3.1[123].*/bin/python"))
    oldest: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in candidates:
        probe = "import sys, ensurepip, venv; print('.'.join(map(str, sys.version_info[:3])))"
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True) if path.is_file() else None
        if done is None or done.returncode:
            continue
        release = tuple(map(int, done.stdout.split(".")))
        version = f"{release[0]}.{release[1]}"
        if version in PYTHONS and (version not in oldest or release < oldest[version][0]):
            oldest[version] = release, path
    return {version: oldest[version][1] for version in sorted(oldest)}


def wheel_of(tree: Path, folder: Path, python: Path) -> Path:
    """Build the wheel of a tree, as pip does for whoever installs it."""
    subprocess.run(
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(tree)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    (wheel,) = folder.glob("freshet_serving-*.whl")
    return wheel


def checkout(revision: str, folder: Path) -> Path:
    folder.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def install(python: Path, wheel: Path, folder: Path) -> None:
    """Install a wheel into a new environment, with the versions of its dependencies that tests run with."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [folder / "bin" / "pip", "install", "--quiet", *constraints, str(wheel)],
        check=True,
        stderr=subprocess.DEVNULL,
        # Compiled modules of Python come with an installation, as pip makes them by default.
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )


def start(how: str, environment: Path, serve: Sequence[str], home: Path | None, body: bytes, model: str) -> Start:
    """Start a server and wait for its first answer. home: None for another user, who has none and may write nowhere."""
    ports = free_ports(3)
    command = [str(environment / "bin" / "freshet"), "serve", *serve, *port_options(ports)]
    env = {"PATH": "/usr/bin:/bin"}
    if home is None:
        command = [*as_user(NOBODY), *command]
    else:
        env["HOME"] = str(home)
    began_s = time.monotonic()
    process = subprocess.Popen(command, env=env, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        if first_answer(ports[0], model, body, lambda: process.poll() is not None, TIMEOUT_S) is None:
            process.kill()
            raise SystemExit(f"cold-start: {how}: no answer: {process.communicate()[1].decode()[-2000:]}")
        wall_s = time.monotonic() - began_s
        return {"how": how, "wall_s": wall_s, "cpu_s": cpu_s(tree(process.pid), ended=True)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def as_user(user: str) -> list[str]:
    """Return what runs a command as another user, UID:GID, without the rights of this one."""
    return [shutil.which("chroot") or "chroot", f"--userspec={user}", "--groups=", "/"]


def others_can_run(python: Path, user: str = NOBODY) -> bool:
    """Return True if this process may become another user, UID:GID, who can run an interpreter."""
    if os.geteuid() != 0 or not shutil.which("chroot"):
        return False
    return subprocess.run([*as_user(user), str(python), "-c", ""], cwd="/", capture_output=True).returncode == 0


def measured(side: str, python: Path, wheel: Path, work: Path, repository: Path) -> dict[str, Any]:
    """Install a wheel and start it in every way."""
    folder = work / side
    folder.mkdir(parents=True)
    environment, home = folder / "venv", folder / "home"
    home.mkdir()
    install(python, wheel, environment)
    nbytes = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    serve = ("--repository", str(repository))

    def started(how: str, home: Path | None = home) -> Start:
        return start(how, environment, serve, home, BODY, "bench")

    starts = [started("first"), started("second")]
    package = next(environment.glob("lib/python*/site-packages/freshet_serving"))
    sample = package / "serving" / "sample"
    if sample.is_dir():
        request = json.loads((sample / "request.json").read_text())
        body = json.dumps(request["body"]).encode()
        starts.append(start("second, --sample", environment, ("--sample",), home, body, request["model"]))
    bundles = package / "processor" / "kernels" / "compiled"
    # An earlier wheel ends in a traceback for this user.
    if bundles.is_dir() and others_can_run(environment / "bin" / "python"):
        starts.append(started("another user, nothing writable", None))
    if bundles.is_dir():
        shutil.rmtree(bundles)
        starts += [started(f"{nth}, without kernels for this machine") for nth in ("first", "second")]
    return {
        "megabytes": nbytes >> 20,
        "wheel_megabytes": wheel.stat().st_size / 2**20,
        "starts": starts,
    }


def page(results: dict[str, Any]) -> str:
    starts = [
        [side["python"], side["wheel"], one["how"], f"{one['wall_s']:.1f}", f"{one['cpu_s']:.1f}"]
        for side in results["sides"]
        for one in side["starts"]
    ]
    sizes = [
        [side["python"], side["wheel"], f"{side['wheel_megabytes']:.1f}", side["megabytes"]]
        for side in results["sides"]
    ]
    tables = table(["Python", "wheel", "start", "seconds", "of a processor"], starts)
    sized = table(["Python", "wheel", "wheel, MB", "installed, MB"], sizes)
    return "\n".join([*opening("Cold start", __doc__ or "", results), tables, "", sized, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest cold-start", description=__doc__)
    parser.add_argument("--base", default="", help="an earlier commit, whose wheel runs beside this one")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version; may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = begun("cold-start") | {"sides": []}
    with tempfile.TemporaryDirectory(prefix="freshet-cold-") as folder:
        work = Path(folder)
        # Another user is to read what lies here.
        work.chmod(0o755)
        found = {v: path for v, path in interpreters().items() if not arguments.python or v in arguments.python}
        if not found:
            parser.error(f"expected one of Python {', '.join(PYTHONS)} with venv, found none")
        repository = work / "repository"
        run_freshet("bench", "model", "--rows", "1000", "--repository", str(repository))
        trees = {"now": ROOT, **({"before": checkout(arguments.base, work / "before")} if arguments.base else {})}
        builder = next(iter(found.values()))
        wheels = {name: wheel_of(tree, work / f"wheel-{name}", builder) for name, tree in trees.items()}
        for version, python in found.items():
            for name, wheel in wheels.items():
                print(f"Python {version}, {name}", file=sys.stderr)
                figures = measured(f"{version}-{name}", python, wheel, work, repository)
                results["sides"].append({"python": version, "wheel": name, **figures})
                shutil.rmtree(work / f"{version}-{name}")
                # After each side: a run takes twenty minutes.
                store(arguments.out, "cold-start", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
