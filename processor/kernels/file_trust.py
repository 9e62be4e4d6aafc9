"""Decide whether a file of compiled code may be read: it is code, and reading it unpickles.

A file is trusted if this user or root owns it and every folder on the way to it, and nobody else may write to any of
them. As OpenSSH does for its keys: a folder with the sticky bit (/tmp) protects what others own in it, and write
permission for a group is accepted if the group is this user's own (Fedora and others create files so).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


def is_trusted(path: Path) -> bool:
    """Report whether only this user and root can have written a file or folder, or can replace it.

    Links are followed. What does not exist is not trusted.
    """
    try:
        real = path.resolve(strict=True)
        return _private(os.stat(real)) and all(_private(os.stat(folder), holds=True) for folder in real.parents)
    except (OSError, RuntimeError):
        return False


def _private(status: os.stat_result, holds: bool = False) -> bool:
    """Report whether only this user and root may write; `holds` for a folder on the way, with the sticky bit enough."""
    if status.st_uid not in (0, os.geteuid()):
        return False
    if holds and status.st_mode & stat.S_ISVTX:
        return True
    if status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or _own_group(status.st_gid)


def _own_group(gid: int) -> bool:
    """Report whether a group is this user's alone: its primary group, of its name, without further members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
