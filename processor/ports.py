"""Extensions, and the ports by which the core asks them: what a predict and a delta do not need.

An extension is a folder of processor/extensions/ or serving/extensions/. Its `__init__.py` says in one line which
others it needs, and offers the core what it has:

    REQUIRES = ("online_features",)
    EXTENSION = Extension(storages={"s3": open_bucket})

Invariants
- The core imports no extension: it asks ENGINE (or serving.ports.SERVER) for what is offered under a name, and has a
  default of its own for what nobody offers.
- What needs an extension that is not there is refused by a line that names it (`missing`), never ignored.
- A name is offered once: two extensions that offer the same are refused when they are found.
- Extensions are found once in a process, at the first question, and are not changed after that. FRESHET_EXTENSIONS
  names the only ones to use, separated by commas; "none" leaves out all.

Costs: finding imports the `__init__.py` of every extension, so an extension imports the rest of itself when it is used.

Rejected: entry points (the engine works from a checkout, and nobody else's code runs because it is installed); a list
of extensions in the core (a new one would change the core).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from freshet_serving.processor.errors import BadInput

ONLY = "FRESHET_EXTENSIONS"
NONE = "none"

E = TypeVar("E")


class Storage(Protocol):
    """Opens repositories at addresses of one scheme."""

    def __call__(
        self,
        address: str,
        *,
        mirror: str = "",
        mirror_bytes: int = 0,
        serving: bool = False,
        models: Iterable[str] = (),
    ) -> Any:
        """Open a repository.

        Args:
            address: Its address, such as s3://bucket/prefix.
            mirror: Folder for local copies; "" for the default.
            mirror_bytes: Maximum size of the local copies; 0 for the default.
            serving: Serve local copies while the address cannot be reached.
            models: Names of the only models to copy; all if empty.
        """


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the manifest that an extension reads.

    Attributes:
        parse: Returns the section's value from what JSON has; raises BadInput that names the field.
        dump: Returns what JSON has of a value.
        check: Raises BadInput unless a value agrees with its manifest.
    """

    parse: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    check: Callable[[Any, Any], None] = lambda value, manifest: None


@dataclass(frozen=True, slots=True)
class Extension:
    """What an extension offers the engine.

    Attributes:
        sections: Sections of the manifest by their keys.
        storages: Storages by the schemes of their addresses.
        observers: What makes an observer (processor.sessions.observers) of a process's requests, by name: from its
            session groups and the clock.
        counters: Help texts of the observers' counters, by name.
        ejectors: What makes an ejector (processor.versions.score_watch) of bad versions, by name: from the evidence of
            a host.
        answerers: What makes an answerer (processor.sessions.answerer) of requests, by the attribute of a request that
            asks for it: from a process's session groups and the clock.
        descriptions: Lines about a version for `freshet inspect`, by their heading, from its manifest; "" for none.
        reports: Reports about one model for the admin API, by name: JSON-able, from the host and the model's name.
    """

    sections: Mapping[str, Section] = field(default_factory=dict)
    storages: Mapping[str, Storage] = field(default_factory=dict)
    observers: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    counters: Mapping[str, str] = field(default_factory=dict)
    ejectors: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    answerers: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    descriptions: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    reports: Mapping[str, Callable[[Any, str], dict[str, Any]]] = field(default_factory=dict)


class Extensions(Generic[E]):
    """The extensions of one package, found by their folders.

    Example:
        >>> ENGINE.get("storages", "nobody") is None
        True
    """

    def __init__(self, package: str) -> None:
        """Take a package whose folders are extensions; nothing is imported before the first question.

        Args:
            package: Name of the package; there are no extensions if it does not exist.
        """
        self._package = package
        self._lock = threading.Lock()
        self._known: dict[str, E] | None = None

    def all(self) -> Mapping[str, E]:
        """Return what each extension offers, by its name.

        Raises:
            BadInput: An extension lacks another one, or two offer the same.
        """
        with self._lock:
            if self._known is None:
                self._known = _found(self._package)
        return self._known

    def offers(self, part: str) -> Mapping[str, Any]:
        """Return what all extensions offer of one part, by name.

        Args:
            part: A mapping among the attributes of what extensions offer.
        """
        return {name: thing for extension in self.all().values() for name, thing in getattr(extension, part).items()}

    def get(self, part: str, name: str) -> Any:
        """Return what is offered under a name, or None.

        Args:
            part: A mapping among the attributes of what extensions offer.
            name: The name.
        """
        return self.offers(part).get(name)


def missing(subject: str, extension: str) -> BadInput:
    """Return the error of what needs an extension that is not there.

    Args:
        subject: What needs it, such as "repository: s3://".
        extension: Name of the extension.
    """
    left_out = os.environ.get(ONLY)
    why = f"{ONLY}={left_out[:64]} leaves it out" if left_out else "this installation does not have it"
    return BadInput(f"{subject} needs the extension {extension[:64]!r}: {why}")


def _found(package: str) -> dict[str, Any]:
    """Import the extensions of a package."""
    if importlib.util.find_spec(package) is None:
        return {}
    folders = [m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__) if m.ispkg]
    only = os.environ.get(ONLY, "")
    chosen = only.replace(" ", "").split(",") if only else folders
    modules = {name: importlib.import_module(f"{package}.{name}") for name in sorted(folders) if name in chosen}
    taken: dict[tuple[str, str], str] = {}
    for name, module in modules.items():
        for other in module.REQUIRES:
            if other not in modules:
                raise missing(f"extension {name!r}", other)
        for part in fields(module.EXTENSION):
            offered = getattr(module.EXTENSION, part.name)
            for key in offered if isinstance(offered, Mapping) else ():
                first = taken.setdefault((part.name, key), name)
                if first != name:
                    raise BadInput(f"extensions {first!r} and {name!r} both offer {key!r} of {part.name}: remove one")
    return {name: module.EXTENSION for name, module in modules.items()}


ENGINE: Extensions[Extension] = Extensions("freshet_serving.processor.extensions")
"""The extensions of the engine."""
