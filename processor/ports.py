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
  names the only ones to use, separated by commas; "none" leaves out all. A name that no extension of the installation
  has is refused by whoever asks first, the engine alone too: a misspelt one would be left out silently.

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
            default), their maximum size in bytes (0 for the default), True to serve the copies while the address
            cannot be reached, and the names of the only models to copy (all if empty).
        objects: Opens the objects below an address, from the address and its name in messages, to be listed (`head`,
            `entries`) and read (`read_range`).
    """

    repository: Callable[[str, str, int, bool, Iterable[str]], Any]
    objects: Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the manifest that an extension reads. A value that is false is a section that is not there.

    Attributes:
        parse: Returns the section's value from what JSON has; raises BadInput that names the field.
        dump: Returns what JSON has of a value.
        check: Raises BadInput unless a value agrees with its manifest.
        fillers: Returns what fills inputs that a request leaves out, by input (processor.package.InputFiller), from a
            value that parse() returned or a program made.
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
        parse: Returns the settings of one store, from its name and its address or its section of a file; raises
            BadInput that names the option.
        open: Opens the stores of such settings, or of mappings of their fields, on a clock; returns what looks inputs
            up in them (processor.features.input_lookup.InputLookups).
        list_writer: Makes what writes inputs to one store as lookups read them, from its settings, a version's manifest
            and the inputs (processor.features.input_writer.ListWriter).
    """

    parse: Callable[[str, Any], Any]
    open: Callable[[Sequence[Any], Any], Any]
    list_writer: Callable[[Any, Any, Collection[str]], Any]


@dataclass(frozen=True, slots=True)
class UserStateStore:
    """Functions of a store for what was computed of users (processor.running.user_states).

    Attributes:
        memory: Allocates the memory that the processes of a server share, an array, from its bytes and their number.
        open: Opens one process's states (ProcessStates), from the memory, the number of processes, its own, and the
            clock.
    """

    memory: Callable[[int, int], Any]
    open: Callable[[Any, int, int, Any], Any]


@dataclass(frozen=True, slots=True)
class CorePlanner:
    """Functions that plan the cores of session groups while they serve.

    Attributes:
        process: Plans for a process that answers alone: from its groups by name, its options, the cores, and the clock.
        worker: Makes a worker's half from its groups by name: what it has counted, and its moves.
        workers: Plans for all workers, in their supervisor: from the options of each, the cores, the number of
            processes, the clock, what returns the counts of all together and the costs of each, and what tells all of
            them their placements.
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
        sections: Sections of the manifest by their keys, from a call.
        storages: Storages by the schemes of their addresses.
        input_stores: Stores that inputs are looked up in, by the option that configures them, from a call.
        late_values: What fills inputs with each batch, by the section of the manifest that says so: from the section's
            value and the numbers of the plan's sources, a processor.features.late_values.LateInputs.
        training_sections: Readers of the subsections of a training configuration, by the section: from a subsection's
            name, its TOML and the folder that relative paths start from, what the manifest's section has of it.
        messages: What answers requests as bytes: returns the reply's bytes, from a Processor, the bytes, and the
            model's name or None; None for nothing.
        row_stores: Stores of the rows of tables, by the schemes of their URLs: a RowStore (processor.tables.row_store)
            from the URL, its timeout in seconds and the clock.
        row_watchers: What makes what is kept beside a version's rows (processor.versions.row_watchers), by name: from
            its files, its tables, and the tensors of these files, by name; or None.
        row_source: What reads rows outside of the process: a RemoteTables (processor.tables.remote_rows) from the
            configuration and the clock; None for nothing.
        interface_builder: What `python -m freshet_serving.processor.capi` runs: returns the exit code; None for
            nothing.
        observers: What makes an observer (processor.sessions.observers) of a process's requests, by name: from its
            session groups and the clock.
        judges: What makes a judge (processor.versions.judges) of a model's deltas and versions, by name: from the
            JudgedModel.
        scorer: What makes the scorer of a replica's sampled rows (processor.versions.row_scoring): from the subgraph
            that scores rows of several requests, the plan, the sample, what creates buffers, and the clock; None for
            none.
        ejectors: What makes an ejector (processor.versions.score_watch) of bad versions, by name: from the evidence of
            a host.
        answerers: What makes an answerer (processor.sessions.answerer) of requests, by the attribute of a request that
            asks for it: from a process's session groups and the clock.
        stages: What runs the batches that sessions have filled (processor.sessions.stages), by the option that asks for
            it: from their number, reader slots, the clock and the cores of their threads.
        user_states: The store of user states; None for nothing.
        device_rows: What runs a version's graphs on rows in the memory of a device (processor.running.placed_rows):
            from its files, its subgraphs, its plan, by subgraph its opened programs, and the bytes that rows may take;
            None for nothing.
        core_planner: What plans the cores of session groups while they serve; None for nothing.
        descriptions: Lines about a version for `freshet inspect`, by their heading, from its manifest; "" for none.
        explanations: What explains a list of items: "item", one of them, and "items", their columns (None for a version
            without), from a version's manifest and the id.
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
    """Something that keeps anything of users, in the core or an extension."""

    def erase_user(self, user: Any) -> Mapping[str, int]:
        """Forget a user; return how many things there were, by what they are (words for a reply).

        Args:
            user: The user, a processor.versions.erasure.ErasedUser.
        """


KEEPERS: weakref.WeakSet[Keeper] = weakref.WeakSet()
"""All that keep anything of users in this process; each adds itself, once, and is held weakly."""


class Extensions(Generic[E]):
    """The extensions of one package, found by their folders.

    Example:
        >>> ENGINE.get("storages", "nobody") is None
        True
    """

    def __init__(self, package: str, below: Extensions[Any] | None = None) -> None:
        """Take a package whose folders are extensions; nothing is imported before the first question.

        Args:
            package: Name of the package; there are no extensions if it does not exist.
            below: Extensions that these may require too.
        """
        self._package, self._below = package, below
        self._lock = threading.Lock()
        self._known: dict[str, E] | None = None

    def all(self) -> Mapping[str, E]:
        """Return what each extension offers, by its name.

        Raises:
            BadInput: An extension lacks another one, two offer the same, or FRESHET_EXTENSIONS names one that does not
                exist.
        """
        with self._lock:
            if self._known is None:
                self._known = _found(self._package, self._below.all() if self._below else ())
        return self._known

    def offers(self, part: str) -> Mapping[str, Any]:
        """Return what all extensions offer of one part, by name.

        Args:
            part: A mapping among the attributes of what extensions offer.
        """
        return {name: thing for extension in self.all().values() for name, thing in getattr(extension, part).items()}

    def only(self, part: str) -> Any:
        """Return a part that one extension at most offers, or None.

        Args:
            part: An attribute of what extensions offer that is None by default.
        """
        return next((one for known in self.all().values() if (one := getattr(known, part)) is not None), None)

    def get(self, part: str, name: str) -> Any:
        """Return what is offered under a name, or None.

        Args:
            part: A mapping among the attributes of what extensions offer.
        """
        return self.offers(part).get(name)


def missing(subject: str, extension: str) -> BadInput:
    """Return the error of what needs an extension that is not there.

    Args:
        subject: What needs it, such as "repository: s3://".
    """
    left_out = os.environ.get(ONLY)
    why = f"{ONLY}={left_out[:64]} leaves it out" if left_out else "this installation does not have it"
    return BadInput(f"{subject} needs the extension {extension[:64]!r}: {why}")


def _found(package: str, below: Collection[str]) -> dict[str, Any]:
    """Import the extensions of a package.

    Args:
        below: Names of further extensions that they may require, those of the same names among them.
    """
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
    """Return the names of the extensions in folders of extensions; imports none."""
    return {module.name for module in pkgutil.iter_modules(paths) if module.ispkg}


def _chosen(known: set[str]) -> set[str]:
    """Return the names in FRESHET_EXTENSIONS, NONE among them; all that are known if it is not set.

    Args:
        known: Names of all extensions, the server's too if it is installed.

    Raises:
        BadInput: It names one that does not exist, or none at all.
    """
    only = os.environ.get(ONLY, "")
    if not only:
        return known
    chosen = {name for name in only.replace(" ", "").split(",") if name}
    if not chosen:
        raise BadInput(f"{ONLY}: expected names of extensions, or {NONE}, got {only[:64]!r}")
    for name in sorted(chosen - known - {NONE}):
        raise BadInput(f"{ONLY}: expected names of extensions, got {name[:64]!r}{nearest(name, sorted(known))}")
    return chosen


ENGINE: Extensions[Extension] = Extensions("freshet_serving.processor.extensions")
"""The extensions of the engine."""
