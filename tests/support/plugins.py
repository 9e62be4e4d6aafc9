"""Entry points of a checkout that is not installed: what `pip install` would leave, for tests to put on a path."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_entry_points(folder: Path) -> Path:
    """Writes the metadata of pyproject.toml's entry points below `folder`; returns what belongs on the path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The environment of a process that finds this checkout's modules and entry points."""
    inherited = os.environ.get("PYTHONPATH")
    path = [str(write_entry_points(folder)), str(ROOT), *([inherited] if inherited else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
