"""`freshet` as a process that kills itself at a named step, which test_night_kills starts.

    FRESHET_DIES_AT="MODULE:NAME MOMENT" FRESHET_DIES_ONCE=FILE python -m tests.e2e.dying serve ...

NAME is that of a function, or of a class and a method of it. MOMENT is "before" or "after" the call, or a number: after
so many further calls within it that change, or make durable, what others see. Nothing happens while FILE is not there.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path

PACKAGE = "freshet_serving"
CALLS = ("rename", "replace", "link", "fsync")


@dataclass(frozen=True)
class Step:
    """A step of a process, and at which moment of it the process ends."""

    module: str
    name: str
    moment: str

    def __str__(self):
        return f"{self.module}:{self.name} {self.moment}"

    @classmethod
    def parse(cls, text):
        where, moment = text.split()
        return cls(*where.split(":"), moment)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying_before(number):
    """Within the block, the call of CALLS after so many others is not made."""
    left, real = [number], {name: getattr(os, name) for name in CALLS}

    def counted(call):
        def before(*args, **options):
            left[0] -= 1
            if left[0] < 0:
                die()
            return call(*args, **options)

        return before

    for name, call in real.items():
        setattr(os, name, counted(call))
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)


def arm(step, once):
    """Makes this process die at a step, as soon as the file `once` exists."""
    owner, (*path, name) = import_module(f"{PACKAGE}.{step.module}"), step.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real = getattr(owner, name)

    @wraps(real)
    def call(*args, **options):
        if not once.exists():
            return real(*args, **options)
        if step.moment == "before":
            die()
        if step.moment == "after":
            real(*args, **options)
            die()
        with dying_before(int(step.moment)):
            return real(*args, **options)

    setattr(owner, name, call)


if __name__ == "__main__":
    from freshet_serving.serving.commands.cli import main

    arm(Step.parse(os.environ["FRESHET_DIES_AT"]), Path(os.environ["FRESHET_DIES_ONCE"]))
    main()
