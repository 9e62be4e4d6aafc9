"""Strangers: modules of the user's own that stand where one of Freshet's is looked for.

`processor`, `compiler`, `models` and `serving` are plain words, and Python takes the first module of a name that it
meets: in a script's own folder, in the one that `python -m` is started in, on PYTHONPATH, then among what is installed.
This package has a name that nobody else takes, so the question is asked here, with the standard library alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FLOORS = ("processor", "compiler", "models", "serving")
_HOME = Path(__file__).resolve().parents[1]


def taken(*names: str) -> str | None:
    """The complaint about the first of these names of ours that a stranger's module has: which file, and what to do
    about it.

    None where every name leads to Freshet's own package. Imports nothing, runs nothing of the stranger's.
    """
    for name in names:
        spec = find_spec(name)
        if spec is None:
            continue
        # A folder without an __init__.py has no origin, but a place.
        file = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
        if not Path(file).resolve().is_relative_to(_HOME / name):
            return (
                f"{name!r} is a package of Freshet's, and here the name is taken by {file}: rename that, "
                "or keep it out of PYTHONPATH and of the folder that you start in"
            )
    return None
