"""The source distribution and both wheels, built so that one commit gives one sequence of bytes.

Only what git tracks is built from, laid out anew with plain modes and the commit's time; the source distribution is
packed again in one order, since setuptools packs it with the time of day; the wheels are built from what it unpacks to,
so it has all that they need. What is left that could make a difference are the backends: .ci/tools.txt names their
versions, and nothing is fetched while building.

freshet-client has no source distribution of its own: its files are a part of freshet-serving's, whose source
distribution holds serving/client/pyproject.toml as well: one of its own would need a second layout.

Rejected: `python -m build` (its environments download the newest backends); versions from git tags (a tree without git
could not be built).
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tests.release.state import git

HOOK = "import importlib, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(sys.argv[3])"
SERVING, CLIENT = "build_backend", "hatchling.build"
HOME = Path("serving") / "client"
COMPILED = Path("freshet_serving/processor/kernels/compiled")


def lay_out(root: Path, folder: Path, epoch_s: int) -> None:
    """Lay out what git tracks, all of one time; links to files become files, links to folders stay."""
    for line in git(root, "ls-files", "--stage", "-z").split("\0"):
        mode, _, name = line.partition(" ")[0], *line.partition("\t")[1:]
        source, target = root / name, folder / name
        if not name:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() and source.is_dir():
            target.symlink_to(source.readlink())
            continue
        if not source.is_file():
            continue
        shutil.copyfile(source, target)
        target.chmod(0o755 if mode == "100755" else 0o644)
        os.utime(target, (epoch_s, epoch_s))


def build(tree: Path, out: Path, epoch_s: int, python: str, kernels: Iterable[Path] = ()) -> list[Path]:
    """Build the archives of a tree, in a folder that is empty.

    Args:
        tree: What git tracks.
        out: The folder.
        epoch_s: Time of all members.
        python: A Python that has the backends, but nothing that compiles kernels.
        kernels: Bundles of compiled kernels for the wheel.
    """
    out.mkdir(parents=True)
    _run(python, SERVING, "build_sdist", tree, out, epoch_s)
    (source,) = out.glob("*.tar.gz")
    settle(source, epoch_s)
    unpacked = unpack(source, out / "unpacked", epoch_s)
    for bundle in kernels:
        place = unpacked / COMPILED / bundle.name
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(bundle, place)
        os.utime(place, (epoch_s, epoch_s))
    _run(python, SERVING, "build_wheel", unpacked, out, epoch_s)
    _run(python, CLIENT, "build_wheel", unpacked / HOME, out, epoch_s)
    shutil.rmtree(out / "unpacked")
    return sorted(out.iterdir())


def settle(archive: Path, epoch_s: int) -> None:
    """Packs a .tar.gz anew: members by name, of one time, of nobody, without folders."""
    with tarfile.open(archive) as packed:
        members = sorted((member for member in packed if member.isfile()), key=lambda member: member.name)
        held = [(member, packed.extractfile(member)) for member in members]
        temporary = archive.with_suffix(".settled")
        with (
            open(temporary, "wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, epoch_s) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as settled,
        ):
            for member, file in held:
                made = tarfile.TarInfo(member.name)
                made.size, made.mtime, made.mode = member.size, epoch_s, 0o755 if member.mode & 0o100 else 0o644
                settled.addfile(made, file)
    temporary.replace(archive)


def unpack(archive: Path, folder: Path, epoch_s: int) -> Path:
    """The only folder of a source distribution."""
    with tarfile.open(archive) as packed:
        # Python 3.11.0 to 3.11.3 have no filters. The archive is our own.
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (made,) = folder.iterdir()
    for path in made.rglob("*"):
        os.utime(path, (epoch_s, epoch_s))
    return made


def _run(python: str, backend: str, hook: str, tree: Path, out: Path, epoch_s: int) -> None:
    """A hook of PEP 517, in a process whose surroundings make no difference; raises CalledProcessError."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "SOURCE_DATE_EPOCH": str(epoch_s),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        # As backend-path of pyproject.toml says.
        "PYTHONPATH": str(tree / "generators"),
    }
    command = [python, "-c", HOOK, backend, hook, str(out.absolute())]
    subprocess.run(command, cwd=tree, env=env, check=True, stdout=subprocess.DEVNULL, umask=0o022)
