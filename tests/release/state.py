"""The state that a release is made of: one version, one commit, one section of the changelog.

The version stands in pyproject.toml and nowhere else: freshet-client reads it there, the command in what is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

SECTION = r"^## {version}, \d{{4}}-\d\d-\d\d\n"
UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PUBLIC = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def version_of(root: Path) -> str:
    """What pyproject.toml says."""
    said: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return said


def tag_of(version: str) -> str:
    return f"v{version}"


def git(root: Path, *arguments: str) -> str:
    """What git said; raises CalledProcessError."""
    done = subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_epoch_s(root: Path) -> int:
    """The time that all files of a release have: of the commit, or what SOURCE_DATE_EPOCH says."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct"))


def refusals(root: Path) -> list[str]:
    """Why this tree is no release, a line each; none where it is one."""
    version = version_of(root)
    found = []
    if PUBLIC.fullmatch(version) is None:
        found.append(f"project.version: a version such as 1.2.0 or 1.2.0rc1 wanted, got {version!r}")
    if changed := git(root, "status", "--porcelain"):
        lines = changed.splitlines()
        found.append(
            f"tree: a clean one wanted, got {len(lines)} changed or unknown files, {lines[0].split()[-1]} first"
        )
    changelog = (root / "CHANGELOG.md").read_text()
    if re.search(SECTION.format(version=re.escape(version)), changelog, re.MULTILINE) is None:
        found.append(f"CHANGELOG.md: a section '## {version}, YYYY-MM-DD' wanted, got none")
    elif any(pending.strip() for pending in UNRELEASED.findall(changelog)):
        found.append("CHANGELOG.md: nothing under Unreleased wanted, got entries that no version has")
    if pending := sorted(path.name for path in (root / "changes").glob("+*.md")):
        found.append(f"changes/: no file wanted, got {len(pending)}, {pending[0]} first; run towncrier build")
    tag = tag_of(version)
    if git(root, "tag", "--list", tag) and git(root, "rev-parse", f"{tag}^{{commit}}") != git(
        root, "rev-parse", "HEAD"
    ):
        found.append(f"tag {tag}: this commit or none wanted, got another commit")
    return found


def tag(root: Path) -> str:
    """Makes the annotated tag of this commit, where it is not there; its name. Nothing is pushed."""
    version = version_of(root)
    name = tag_of(version)
    if not git(root, "tag", "--list", name):
        git(root, "tag", "--annotate", "--message", f"Freshet {version}", name)
    return name
