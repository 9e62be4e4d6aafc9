"""What has to be in an archive, and what must not: told from the files that git tracks, not from what was packed."""

from __future__ import annotations

import email
import os
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from tests.release.state import git

PACKAGES = ("freshet_serving", "processor", "compiler", "models", "serving")
# Of no use where it is installed: what generates modules that are there, and how the other distribution is built.
LEFT_OUT = (".proto", "serving/client/pyproject.toml", "serving/client/LICENSE")
BESIDE = (
    "CHANGELOG.md",
    "generators/build_backend.py",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
)
MOST_NBYTES = 8 << 20


def package_files(root: Path) -> set[str]:
    """Return every tracked file of the packages by its place in an archive, where links to folders are folders."""
    names = (Path(name) for name in git(root, "ls-files", *PACKAGES).splitlines())
    files = (name for name in names if not (root / name).is_dir())
    places = (name if name.parts[0] == PACKAGES[0] else Path(PACKAGES[0], name) for name in files)
    return {place.as_posix() for place in places if not place.as_posix().endswith(LEFT_OUT)}


def client_files(root: Path) -> set[str]:
    """The files that freshet-client consists of."""
    home = root / "serving" / "client"
    held = tomllib.loads((home / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    files: set[str] = set()
    for source, target in held["force-include"].items():
        path = Path(os.path.normpath(home / source))
        assert path.exists(), source
        assert path == root / target, source
        files.update(f.relative_to(root).as_posix() for f in path.rglob("*.py")) if path.is_dir() else files.add(target)
    return files


def check_wheel(wheel: Path, files: set[str], version: str) -> list[str]:
    """What is wrong with a wheel that is to hold these files, a line each."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        about = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
        told = email.message_from_bytes(packed.read(f"{about}/METADATA"))
        if packed.testzip() is not None:
            return [f"{wheel.name}: a member's checksum does not match"]
    found = _compared(wheel.name, {name for name in names if not name.startswith(f"{about}/")}, files)
    tops = {name.partition("/")[0] for name in files}
    found += [f"{wheel.name}: {top}/py.typed wanted" for top in sorted(tops) if f"{top}/py.typed" not in names]
    if f"{about}/licenses/LICENSE" not in names:
        found.append(f"{wheel.name}: a licence wanted in {about}/licenses")
    if not wheel.name.endswith("-py3-none-any.whl"):
        found.append(f"{wheel.name}: a wheel for every machine wanted")
    if wheel.stat().st_size > MOST_NBYTES:
        found.append(f"{wheel.name}: at most {MOST_NBYTES} bytes wanted, got {wheel.stat().st_size}")
    return found + _check_metadata(wheel.name, told, version)


def check_source(source: Path, files: set[str], version: str) -> list[str]:
    """What is wrong with a source distribution that is to hold these files and what wheels are built with."""
    folder = source.name.removesuffix(".tar.gz")
    with tarfile.open(source) as packed:
        names = [member.name for member in packed]
        found = [f"{source.name}: plain files wanted, got {m.name}" for m in packed if not m.isfile()]
        told = packed.extractfile(f"{folder}/PKG-INFO")
        assert told is not None
        metadata = email.message_from_bytes(told.read())
    inner = {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}
    found += [f"{source.name}: {name} is outside of {folder}" for name in names if not name.startswith(f"{folder}/")]
    wanted = files | {*BESIDE, "serving/client/pyproject.toml", "serving/client/LICENSE"}
    made = {name for name in inner if name.startswith("freshet_serving.egg-info/")}
    found += _compared(source.name, inner - made - {"PKG-INFO", "MANIFEST.in", "setup.cfg"}, wanted)
    return found + _check_metadata(source.name, metadata, version)


def _compared(archive: str, names: set[str], wanted: set[str]) -> list[str]:
    missing = [f"{archive}: {name} wanted, which is tracked" for name in sorted(wanted - names)]
    return missing + [f"{archive}: {name} is not to be in it" for name in sorted(names - wanted)]


def _check_metadata(archive: str, told: Message, version: str) -> list[str]:
    found = []
    if told["Version"] != version:
        found.append(f"{archive}: version {version} wanted, got {told['Version']}")
    for field in ("Summary", "License-Expression", "License-File", "Requires-Python", "Keywords"):
        if not told[field]:
            found.append(f"{archive}: {field} wanted in its metadata")
    wanted: Iterable[str] = ("Typing :: Typed", "Programming Language :: Python :: 3")
    given = told.get_all("Classifier") or []
    return found + [f"{archive}: classifier {one!r} wanted" for one in wanted if one not in given]
