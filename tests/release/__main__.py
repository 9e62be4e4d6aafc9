"""`make release`: dist/<version>/ with the source distribution, both wheels, their bills of materials and checksums.

Refused without --draft: a tree that is not clean, a version without a section of the changelog, a tag that is another
commit's. Nothing is uploaded and nothing is pushed; CONTRIBUTING.md says what is left to do.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from freshet_serving.processor.kernels.code_store import LEVELS, SUFFIX
from tests.release.archives import COMPILED, build, lay_out
from tests.release.bill import check_bill, write_bill
from tests.release.contents import check_source, check_wheel, client_files, package_files
from tests.release.newcomer import ROOT, requirement, try_out
from tests.release.state import commit_epoch_s, refusals, tag, version_of

TOOLS = ROOT / ".venv" / "tools" / "bin"
SUMS = "SHA256SUMS"


def main() -> int:
    """0 when all of it is sound and in its place."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--draft", action="store_true", help="of any tree, whatever its changelog and tags say")
    parser.add_argument("--build-only", action="store_true", help="without the environments that take minutes")
    parser.add_argument("--tag", action="store_true", help="at the end an annotated tag of this commit")
    given = parser.parse_args()
    if given.draft and given.tag:
        return refuse(["--tag: a release wanted, got a draft"])
    if not given.draft and (found := refusals(ROOT)):
        return refuse([*found, "make release RELEASE_ARGS=--draft builds it all the same"])
    version = version_of(ROOT)
    with tempfile.TemporaryDirectory(prefix="freshet-release-") as held:
        work = Path(held)
        archives = built_twice(work)
        if found := [*complaints(archives, version), *bills(archives, work)]:
            return refuse(found)
        place = put(archives[0].parent, ROOT / "dist" / version)
        print(*(f"{path.name} {path.stat().st_size >> 10} KiB" for path in sorted(place.iterdir())), sep="\n")
        if not given.build_only:
            try_out(place, work)
    if given.tag:
        print(f"tagged {tag(ROOT)}; nothing was pushed")
    print(f"release: {place.relative_to(ROOT)}")
    return 0


def refuse(lines: list[str]) -> int:
    """Says why, and the status of it."""
    for line in lines:
        print(f"release: {line}", file=sys.stderr)
    return 2


def built_twice(work: Path) -> list[Path]:
    """The archives, built in two places of which each gives the same bytes."""
    epoch_s, python = commit_epoch_s(ROOT), str(TOOLS / "python")
    kernels = compiled(work)
    made = []
    for name in ("first", "a second one, elsewhere"):
        lay_out(ROOT, work / name / "tree", epoch_s)
        made.append(build(work / name / "tree", work / name / "out", epoch_s, python, kernels))
    first, second = ({path.name: path.read_bytes() for path in paths} for paths in made)
    if first != second:
        differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        sys.exit(f"release: two builds differ: {', '.join(differing)}")
    return made[0]


def compiled(work: Path) -> list[Path]:
    """Compile the kernels, twice the same; return their bundles."""
    for name in ("kernels", "kernels again"):
        command = [sys.executable, "-m", "freshet_serving.processor.kernels", "--into", str(work / name)]
        subprocess.run(command, cwd=ROOT, check=True)
    bundles = sorted((work / "kernels").iterdir())
    if any(bundle.read_bytes() != (work / "kernels again" / bundle.name).read_bytes() for bundle in bundles):
        sys.exit("release: kernels compiled twice differ")
    return bundles


def complaints(archives: list[Path], version: str) -> list[str]:
    """What is wrong with the archives, a line each, by our own checks and by those of others."""
    files = package_files(ROOT)
    found = []
    for path in archives:
        if path.suffix == ".whl":
            bundles = {f"{COMPILED}/{level}{SUFFIX}" for level in LEVELS}
            wanted = client_files(ROOT) if path.name.startswith("freshet_client") else files | bundles
            found += check_wheel(path, wanted, version)
        else:
            found += check_source(path, files, version)
    wheels = [path for path in archives if path.suffix == ".whl"]
    for command in (
        [TOOLS / "twine", "check", "--strict", *archives],
        # W009: our packages are five, and are to be.
        [TOOLS / "check-wheel-contents", "--ignore", "W009", *wheels],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            found += [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return found


def bills(archives: list[Path], work: Path) -> list[str]:
    """Writes a bill beside each wheel; what is wrong with them."""
    found = []
    for path, home in zip((path for path in archives if path.suffix == ".whl"), ("serving/client", "."), strict=True):
        project = tomllib.loads((ROOT / home / "pyproject.toml").read_text())["project"]
        bill = write_bill(path, ROOT / "constraints.txt", work / "bills", TOOLS)
        needs = {requirement(line) for line in project["dependencies"]}
        found += check_bill(bill, project["name"], needs)
    return found


def put(made: Path, place: Path) -> Path:
    """Moves a whole folder to its place, with the checksums of what is in it."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir())]
    (made / SUMS).write_text("".join(lines))
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(made, place)
    return place


if __name__ == "__main__":
    sys.exit(main())
