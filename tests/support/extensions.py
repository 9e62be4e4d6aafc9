"""Engines and servers without some of their extensions."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from freshet_serving.processor.ports import ENGINE, ONLY, Extensions
from freshet_serving.serving.ports import SERVER


@contextmanager
def without_extensions(*names: str) -> Iterator[None]:
    """Leave out extensions, of the engine and the server, in this process and its children.

    Args:
        names: The extensions; all if there is none.
    """
    kept = sorted((ENGINE.all().keys() | SERVER.all().keys()) - set(names)) if names else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ONLY, ",".join(kept) or "none")
        for extensions in (ENGINE, SERVER):
            patch.setattr(extensions, "_known", None)
        yield


@contextmanager
def with_extensions(package: str) -> Iterator[None]:
    """Add the extensions of a package to the engine's, in this process.

    Args:
        package: Name of the package, whose folders are extensions.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINE, "_known", {**ENGINE.all(), **Extensions(package).all()})
        yield
