"""Run an image's files as a container engine would: as PID 1 of its own, in its root, as its user.

The network is the machine's; memory and processors are not limited.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 60.0

_ENTER = """
set -e
root=$1 user=$2 folder=$3 written=$4
shift 4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
[ "$written" = yes ] || mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" --groups= "$root" /usr/bin/env -i -C "$folder" "$@"
"""


class Container:
    """One process in the files of an image, and what it starts.

    Example:
        with Container(root, config, ["serve", "--sample"], user="4711:0", read_only=True) as container:
            container.output()

    Attributes:
        began_s: When it was started, by time.monotonic().
    """

    def __init__(
        self,
        root: Path,
        config: Mapping[str, Any],
        command: Sequence[str] = (),
        *,
        user: str = "",
        read_only: bool = False,
    ) -> None:
        """Start it.

        Args:
            root: The files of the image; what is written, is written there.
            config: User, Env, WorkingDir, Entrypoint and Cmd of the image.
            command: Instead of Cmd.
            user: UID:GID instead of the image's.
            read_only: Nothing but /dev/shm can be written to.
        """
        uid, gid, home = _account(root, user or config["User"])
        variables = [f"HOME={home}", *config["Env"]]
        arguments = [*config["Entrypoint"], *(command or config["Cmd"])]
        written = "no" if read_only else "yes"
        self._enter = ["--setuid", uid, "--setgid", gid, "--", "env", "-i", *variables]
        self._said = ""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh", str(root),
             f"{uid}:{gid}", config["WorkingDir"] or "/", written, *variables, *arguments],
            stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._said = self.output()
        self._output.close()

    @property
    def pid(self) -> int:
        """The process that is PID 1 in the container; 0 if there is none."""
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        except OSError:
            return 0
        return int(children[0]) if children else 0

    def ended(self) -> bool:
        """Return True if its process has ended."""
        return self._process.poll() is not None

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as its user."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--root", *self._enter]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=60)

    def wait(self, timeout_s: float = 600.0) -> tuple[int, str]:
        """Wait until it ends by itself; return the exit status and what it has printed."""
        return self._process.wait(timeout_s), self.output()

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM as an engine does; return the exit status and what it has printed."""
        if not self.ended() and self.pid:
            os.kill(self.pid, signal.SIGTERM)
        try:
            status = self._process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return status, self.output()

    def output(self) -> str:
        """Return what it has printed so far."""
        if self._output.closed:
            return self._said
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")


def _account(root: Path, user: str) -> tuple[str, str, str]:
    """Return uid, gid and home of a user of the image, by name or number; a number that is nobody's has home /."""
    name, _, group = user.partition(":")
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if name in (fields[0], fields[2]):
            return fields[2], group or fields[3], fields[5]
    return name, group or "0", "/"
