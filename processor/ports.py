"""Extensions, and the ports by which the core asks them for what a predict and a delta do not need.

An extension is a folder of processor/extensions/ or serving/extensions/. Its `__init__.py` names the extensions it
needs and what it offers the core:

    REQUIRES = ("online_features",)
    EXTENSION = Extension(storages={"s3": open_bucket})

Invariants
- The core imports no extension: it asks ENGINE (or serving.ports.SERVER) for what is offered under a name, and has a
  default for what nobody offers.
- What needs a missing extension is refused by a line that names it (`missing`), never ignored.
- Two extensions that offer the same name are refused when they are found: once in a process, at the first question.
- FRESHET_EXTENSIONS names the only ones to use, separated by commas; "none" leaves out all. An unknown name is
  refused, also by the engine alone: a misspelt one would be left out silently.

Costs: finding imports the `__init__.py` of every extension, so an extension imports the rest of itself when it is used.

Rejected: entry points (no code should run because it is installed); a list of extensions in the core.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from freshet_serving.processor.errors import BadInput, nearest

ONLY = "FRESHET_EXTENSIONS"
NONE = "none"

FLOORS = Path(__file__).parents[1]
"""Folder of the packages that are installed; each may have a folder of extensions."""

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Storage:
    """Functions that open addresses of one scheme.

    Attributes:
        repository: Opens a repository (processor.repository) from its address, the folder for local copies ("" for the
            default), their maximum bytes (0 for the default), True to serve the copies while the address cannot be
            reached, and the only models to copy (all if empty).
        objects: Opens the objects below an address, from the address and its name in messages, to be listed (`head`,
            `entries`) and read (`read_range`).
    """

    repository: Callable[[str, str, int, bool, Iterable[str]], Any]
    objects: Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the manifest that an extension reads; a false value is a missing section.

    Attributes:
        parse: Returns the section's value from JSON; raises BadInput that names the field.
        dump: Returns a value as JSON.
        check: Raises BadInput unless a value agrees with its manifest.
        fillers: Returns a processor.package.InputFiller for each input that the section fills.
        lines: Returns a value as lines for people.
    """

    parse: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    check: Callable[[Any, Any], None] = lambda value, manifest: None
    fillers: Callable[[Any], Mapping[str, Any]] = lambda value: {}
    lines: Callable[[Any], Sequence[str]] = lambda value: ()


@dataclass(frozen=True, slots=True)
class InputStores:
    """Stores outside of the process that inputs are looked up in before a request is bound.

    Attributes:
        parse: Returns the settings of one store from its name and its address or its section of a file; raises
            BadInput that names the option.
        open: Opens stores from such settings, or from mappings of their fields, and a clock; returns a
            processor.features.input_lookup.InputLookups.
        list_writer: Returns a processor.features.input_writer.ListWriter from a store's settings, a version's manifest
            and the inputs.
    """

    parse: Callable[[str, Any], Any]
    open: Callable[[Sequence[Any], Any], Any]
    list_writer: Callable[[Any, Any, Collection[str]], Any]


@dataclass(frozen=True, slots=True)
class UserStateStore:
    """A store of user states (processor.running.user_states).

    Attributes:
        memory: Allocates the array that a server's processes share, from its bytes and their number.
        open: Opens one process's ProcessStates from the memory, the number of processes, its own, and the clock.
    """

    memory: Callable[[int, int], Any]
    open: Callable[[Any, int, int, Any], Any]


@dataclass(frozen=True, slots=True)
class CorePlanner:
    """Functions that plan the cores of session groups while they serve.

    Attributes:
        process: Plans for a process that answers alone: from its groups by name, its options, the cores, and the clock.
        worker: Makes a worker's half, its counts and moves, from its groups by name.
        workers: Plans for all workers, in their supervisor: from the options of each, the cores, the number of
            processes, the clock, what returns the summed counts and the costs of each, and what tells all of them their
            placements.
        borrower: Keeps a trainer on the cores that a server lends it, within a block: from the repository's address,
            and what returns True once rows have been learned.
    """

    process: Callable[[Mapping[str, Any], Any, frozenset[int], Any], Any]
    worker: Callable[[Mapping[str, Any]], Any]
    workers: Callable[[Any, frozenset[int], int, Any, Callable[[], Any], Callable[[Any], None]], Any]
    borrower: Callable[[str, Callable[[], bool]], Any]


@dataclass(frozen=True, slots=True)
class Extension:
    """The parts that an extension offers the engine.

    Attributes:
        sections: Sections of the manifest, from a call, by key.
        storages: Storages by scheme.
        input_stores: Stores that inputs are looked up in, from a call, by the option that configures them.
        late_values: Makes processor.features.late_values.LateInputs, by section of the manifest: from the section's
            value and the numbers of the plan's sources.
        training_sections: Reads a subsection of a training configuration, by section: from its name, its TOML and the
            folder that relative paths start from; returns the manifest's part.
        messages: Answers a request as bytes, from a Processor, the bytes, and the model's name or None.
        row_stores: Opens a RowStore (processor.tables.row_store), by scheme: from the URL, its timeout in seconds and
            the clock.
        row_watchers: Makes what is kept beside a version's rows (processor.versions.row_watchers), by name: from its
            files, its tables, and the files' tensors by name; may return None.
        row_source: Opens the RemoteTables (processor.tables.remote_rows) of a configuration and the clock.
        interface_builder: What `python -m freshet_serving.processor.capi` runs; returns the exit code.
        observers: Makes an observer (processor.sessions.observers), by name: from a process's session groups and the
            clock.
        judges: Makes a judge (processor.versions.judges), by name: from the JudgedModel.
        scorer: Makes the scorer of a replica's sampled rows (processor.versions.row_scoring): from the subgraph that
            scores rows of several requests, the plan, the sample, what creates buffers, and the clock.
        ejectors: Makes an ejector (processor.versions.score_watch), by name: from the evidence of a host.
        answerers: Makes an answerer (processor.sessions.answerer), by the attribute of a request that asks for it: from
            a process's session groups and the clock.
        stages: Makes what runs filled batches (processor.sessions.stages), by option: from the number of stages, the
            reader slots, the clock and the cores of their threads.
        device_rows: Runs a version's graphs on rows in a device's memory (processor.running.placed_rows): from its
            files, its subgraphs, its plan, the opened programs by subgraph, and the bytes that rows may take.
        descriptions: A line about a version for `freshet inspect`, by heading: from its manifest; "" for none.
        explanations: Explains a list of items, by "item" (one of them) and "items" (their columns, None for a version
            without): from a version's manifest and the id.
        reports: Reports about one model for the admin API, by name: JSON-able, from the host and the model's name.
    """

    sections: Mapping[str, Callable[[], Section]] = field(default_factory=dict)
    storages: Mapping[str, Storage] = field(default_factory=dict)
    input_stores: Mapping[str, Callable[[], InputStores]] = field(default_factory=dict)
    late_values: Mapping[str, Callable[[Any, Mapping[tuple[str, int], int]], Any]] = field(default_factory=dict)
    training_sections: Mapping[str, Callable[[str, Mapping[str, Any], Path], Any]] = field(default_factory=dict)
    messages: Callable[[Any, bytes, str | None], bytes] | None = None
    row_stores: Mapping[str, Callable[[str, float, Any], Any]] = field(default_factory=dict)
    row_watchers: Mapping[str, Callable[[Any, Any, Any], Any]] = field(default_factory=dict)
    row_source: Callable[[Any, Any], Any] | None = None
    interface_builder: Callable[[], int] | None = None
    observers: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    judges: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    scorer: Callable[[Any, Any, Any, Callable[[], Any], Any], Any] | None = None
    ejectors: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    answerers: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    stages: Mapping[str, Callable[[int, Sequence[int], Any, frozenset[int]], Any]] = field(default_factory=dict)
    user_states: UserStateStore | None = None
    device_rows: Callable[[Any, Any, Any, Any, int], Any] | None = None
    core_planner: CorePlanner | None = None
    descriptions: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    explanations: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    reports: Mapping[str, Callable[[Any, str], dict[str, Any]]] = field(default_factory=dict)


class Keeper(Protocol):
    """Something that keeps data of users, in the core or an extension."""

    def erase_user(self, user: Any) -> Mapping[str, int]:
        """Forget a processor.versions.erasure.ErasedUser; return counts by what was erased, in words for a reply."""


KEEPERS: weakref.WeakSet[Keeper] = weakref.WeakSet()
"""All that keep anything of users in this process; each adds itself, once, and is held weakly."""


class Extensions(Generic[E]):
    """The extensions of one package, found by their folders.

    Example:
        >>> ENGINE.get("storages", "nobody") is None
        True
    """

    def __init__(self, package: str, below: Extensions[Any] | None = None) -> None:
        """Take a package of extensions, which need not exist; `below` are extensions that they may require too."""
        self._package, self._below = package, below
        self._lock = threading.Lock()
        self._known: dict[str, E] | None = None

    def all(self) -> Mapping[str, E]:
        """Return what each extension offers, by its name; raise BadInput as the module's head says."""
        with self._lock:
            if self._known is None:
                self._known = _load(self._package, self._below.all() if self._below else ())
        return self._known

    def offers(self, part: str) -> Mapping[str, Any]:
        """Return what all extensions offer of one part that is a mapping, by name."""
        return {name: thing for extension in self.all().values() for name, thing in getattr(extension, part).items()}

    def only(self, part: str) -> Any:
        """Return a part that at most one extension offers, or None."""
        return next((offer for each in self.all().values() if (offer := getattr(each, part)) is not None), None)

    def get(self, part: str, name: str) -> Any:
        """Return what is offered under a name of a part that is a mapping, or None."""
        return self.offers(part).get(name)


def missing(subject: str, extension: str) -> BadInput:
    """Return the error for a subject, such as "repository: s3://", that needs an extension that is not there."""
    left_out = os.environ.get(ONLY)
    why = f"{ONLY}={left_out[:64]} leaves it out" if left_out else "this installation does not have it"
    return BadInput(f"{subject} needs the extension {extension[:64]!r}: {why}")


def _load(package: str, below: Collection[str]) -> dict[str, Any]:
    """Import the extensions of a package; `below` are the names of further ones that they may require."""
    if importlib.util.find_spec(package) is None:
        return {}
    folders = _folders(importlib.import_module(package).__path__)
    chosen = _chosen(folders | _folders(str(path) for path in FLOORS.glob("*/extensions")))
    modules = {name: importlib.import_module(f"{package}.{name}") for name in sorted(folders & chosen)}
    taken: dict[tuple[str, str], str] = {}
    for name, module in modules.items():
        for other in module.REQUIRES:
            if other not in below and (other not in modules or other == name):
                raise missing(f"extension {name!r}", other)
        for part in fields(module.EXTENSION):
            offered = getattr(module.EXTENSION, part.name)
            keys = offered if isinstance(offered, Mapping) else () if offered is None else ("",)
            for key in keys:
                first = taken.setdefault((part.name, key), name)
                if first != name:
                    same = f"{key!r} of {part.name}" if key else part.name
                    raise BadInput(f"extensions {first!r} and {name!r} both offer {same}: remove one")
    return {name: module.EXTENSION for name, module in modules.items()}


def _folders(paths: Iterable[str]) -> set[str]:
    """Return the names of the extensions in folders; imports none."""
    return {module.name for module in pkgutil.iter_modules(paths) if module.ispkg}


def _chosen(existing: set[str]) -> set[str]:
    """Return the names in FRESHET_EXTENSIONS, NONE among them; `existing`, which are all, if it is not set."""
    only = os.environ.get(ONLY, "")
    if not only:
        return existing
    chosen = {name for name in only.replace(" ", "").split(",") if name}
    if not chosen:
        raise BadInput(f"{ONLY}: expected names of extensions, or {NONE}, got {only[:64]!r}")
    for name in sorted(chosen - existing - {NONE}):
        raise BadInput(f"{ONLY}: expected names of extensions, got {name[:64]!r}{nearest(name, sorted(existing))}")
    return chosen


ENGINE: Extensions[Extension] = Extensions("freshet_serving.processor.extensions")
"""The extensions of the engine."""
