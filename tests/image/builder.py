"""Build the stages of the Dockerfile with buildah, in a storage of its own.

Where the registry of the base image is not reached, debootstrap makes one of Debian's packages: Python 3.11 with venv
and pip, nothing else. A build sees the package index as pip sees it here: pip's settings, and the files and folders
that they name, are mounted for the time of the build and are in no layer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim"
TOOLS = ("buildah", "debootstrap", "unshare", "chroot")
PULL_TIMEOUT_S = 30
SOURCES = Path("/etc/apt")
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"


def missing() -> str:
    """Return what keeps images from being built here, or an empty string."""
    if os.geteuid() != 0:
        return "images are built by root: buildah changes its root folder"
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"not installed: {', '.join(absent)} (Debian's packages buildah and debootstrap)" if absent else ""


class Builder:
    """Images in a storage of their own, which goes away with its folder.

    Attributes:
        work: The folder; what is in it belongs to this builder.
        base: How the base image came to be.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.base = ""
        self._storage = ["--root", str(work / "storage"), "--runroot", str(work / "run")]
        self._storage += ["--storage-driver", "overlay" if _overlays(work) else "vfs"]

    def close(self) -> None:
        """Unmount what was mounted and remove the storage."""
        for kind in ("umount", "rm"):
            self._buildah(kind, "--all")
        shutil.rmtree(self.work / "storage", ignore_errors=True)

    def prepare_base(self) -> None:
        """Pull the base image, or make one."""
        try:
            self._buildah("pull", "--quiet", BASE, timeout_s=PULL_TIMEOUT_S)
            self.base = f"{BASE}, pulled"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self.base = f"Debian's {_make_base(self.work / 'base')} by debootstrap: no registry was reached"
            container = self._buildah("from", "scratch")
            self._buildah("add", "--quiet", container, str(self.work / "base"), "/")
            self._buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
            self._buildah("commit", "--quiet", "--rm", container, BASE)
            shutil.rmtree(self.work / "base")

    def build(self, stage: str, tree: Path) -> None:
        """Build a stage of the Dockerfile of a tree as the image `freshet-STAGE`."""
        # The format of Docker has a health check, that of OCI has none.
        options = ["--format", "docker", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers"]
        settings = _pip_settings()
        pip = self.work / "pip.conf"
        pip.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        for source, target in [(pip, Path("/etc/pip.conf")), *((path, path) for path in _named_paths(settings))]:
            options += ["--volume", f"{source}:{target}:ro"]
        for name in os.environ:
            if re.fullmatch(r"(https?|no)_proxy", name, re.IGNORECASE):
                options += ["--build-arg", name]
        self._buildah("build", *options, "--target", stage, "--tag", f"freshet-{stage}", str(tree), timeout_s=3600)

    def config(self, stage: str) -> dict[str, Any]:
        """Return how an image is run, as Docker has it: User, Env, WorkingDir, Entrypoint, Cmd, Healthcheck."""
        found: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", f"freshet-{stage}"))
        config: dict[str, Any] = found["Docker"]["config"]
        return config

    def unpack(self, image: str) -> Path:
        """Return a new folder with the files of an image, for one container."""
        container = self._buildah("from", "--pull-never", image)
        return Path(self._buildah("mount", container))

    def megabytes(self, image: str) -> int:
        """Return the size of an image's files."""
        root = self.unpack(image)
        return int(subprocess.check_output(["du", "-xsm", str(root)], text=True).split()[0])

    def _buildah(self, verb: str, *arguments: str, timeout_s: float = 600) -> str:
        command = ["buildah", *self._storage, verb, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, f"buildah {verb}", done.stdout, done.stderr)
        return done.stdout.strip()


def _overlays(work: Path) -> bool:
    """Return True if layers can be mounted over each other here; else each is a whole copy."""
    folders = [work / "overlay" / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir(parents=True)
    options = ",".join(f"{name}dir={folder}" for name, folder in zip(("lower", "upper", "work"), folders))
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folders[3]], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", folders[3]], check=True)
    shutil.rmtree(work / "overlay")
    return done.returncode == 0


def _make_base(folder: Path) -> str:
    """Lay out Debian with Python as the base image has it; return the release's name."""
    release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    lists = [SOURCES / "sources.list", *sorted(SOURCES.glob("sources.list.d/debian*"))]
    texts = "\n".join(path.read_text() for path in lists if path.is_file())
    mirror = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) +(\S+/debian/?)(?:\s|$)", texts, re.MULTILINE)
    if not release or not mirror:
        raise SystemExit("image-check: expected a Debian with its archive in /etc/apt, found none")
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", release[1], str(folder), mirror[1]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"image-check: debootstrap failed: {done.stdout[-500:]}")
    # As in the image: `python` is there, and pip may install.
    (folder / "usr/bin/python").symlink_to("python3")
    for marker in folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    shutil.rmtree(folder / "var/cache/apt")
    return release[1]


def _pip_settings() -> dict[str, str]:
    """Return pip's settings here, by configuration and environment: name -> value."""
    listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    # The environment comes first, and wins.
    lines = [line.partition("=") for line in reversed(listed.splitlines())]
    return {name.rpartition(".")[2]: value[1:-1] for name, _, value in lines}


def _named_paths(settings: dict[str, str]) -> list[Path]:
    """Return the files and folders of this machine that pip's settings name."""
    paths = set()
    for value in " ".join(settings.values()).split():
        path = Path(value.removeprefix("file://"))
        # The files of an index lie beside its pages.
        paths.add(path.parent if value.startswith("file://") else path)
    kept = sorted(path for path in paths if path.is_absolute() and path.exists())
    return [path for path in kept if not any(other in path.parents for other in kept)]
