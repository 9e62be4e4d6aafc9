"""Send a version's frames from its writer to the replica of another process.

Every array gets a number when it is first seen. A worker holds exactly the arrays of the last frame that it has
acknowledged, and the supervisor knows which; so a frame message has the new arrays and names the others. A frame that
was refused or interrupted leaves both sides as they were.

    open      manifest, control words, the files of executables, stage and warm-up: what a Replica is made from
    frame     its number; new arrays; per table and for the dense tensors, names -> numbers

What a flip changes beyond the frame is in the control words and needs no message (processor.versions.control).

Everything sent is the supervisor's memory or verified table files: one copy, mapped by all processes.
"""

from __future__ import annotations

import logging
import mmap
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Corrupt, FreshetError, NotReady
from freshet_serving.processor.features.input_lookup import NO_LOOKUPS, InputLookups
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.memory import ArrayHandle, advise, share
from freshet_serving.processor.package import Manifest, crc32
from freshet_serving.processor.repository import WARMUP, VersionReader
from freshet_serving.processor.running import executable_files
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.processor.tables.remote_rows import RemoteTables
from freshet_serving.processor.versions.control import ControlWords
from freshet_serving.processor.versions.replica import WRITTEN_BY_READERS, Frame, Replica
from freshet_serving.processor.versions.row_scoring import dump_scores
from freshet_serving.serving.front.example_text import texts
from freshet_serving.serving.workers.array_packing import ArrayPacker, ArrayUnpacker, PackedArray
from freshet_serving.serving.workers.channel import Message

if TYPE_CHECKING:
    from freshet_serving.processor.running.user_states import ProcessStates

log = logging.getLogger("freshet.workers")


@dataclass(slots=True)
class SharedArray:
    """An array that a frame names. Holding `array` keeps its id() from being reused."""

    array: NDArray[Any]
    number: int
    handle: ArrayHandle
    writable: bool


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    frame: Frame
    tables: list[dict[str, int]]
    dense: dict[str, int]

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(n for names in (*self.tables, self.dense) for n in names.values())


class FrameSender:
    """Sends one version's changes to workers; supervisor side."""

    def __init__(self, package: VersionReader, control: ControlWords) -> None:
        """Read the files that a replica is made from.

        A damaged file is left out: the worker's replica decides what replaces it. Raises NotReady if one cannot be read
        for now.
        """
        names, contents = [], []
        files = sorted(executable_files(package.manifest))
        files += [package.manifest.stage.file] if package.manifest.stage else []
        files += [WARMUP] if WARMUP in package.manifest.files else []
        for name in files:
            try:
                contents.append(np.frombuffer(package.file(name), np.uint8))
            except NotReady:
                # If it were left out, the worker would take it for damaged, and a damaged version is not retried.
                raise
            except FreshetError as error:
                log.warning("%s version %d: %s", package.manifest.model, package.manifest.version, error)
            else:
                names.append(name)
        self._manifest = package.manifest
        self._files = dict(zip(names, share(contents, "executables")))
        (self._control,) = share([control.words], "control")
        self._shared: dict[int, SharedArray] = {}
        self._last = 0

    def opening(self, process: int) -> tuple[Message, list[int]]:
        """Return the message and descriptors from which a process, by its index of pins, makes its replica."""
        packer = ArrayPacker()
        message = {
            "manifest": self._manifest.to_json().decode(),
            "process": process,
            "control": packer.pack(self._control, writable=True),
            "files": {name: packer.pack(handle) for name, handle in self._files.items()},
        }
        return message, packer.fds

    def number(self, frame: Frame) -> OutgoingFrame:
        """Assign numbers to a frame's arrays and make the new ones shareable."""
        arrays_of = [(a, name in WRITTEN_BY_READERS) for arrays in frame.arrays for name, a in arrays.items()]
        arrays_of += [(a, False) for a in frame.dense.values()]
        new = {id(a): (a, writable) for a, writable in arrays_of if id(a) not in self._shared}
        handles = share([a for a, _ in new.values()], "dense")
        for (array, writable), handle in zip(new.values(), handles):
            self._last += 1
            self._shared[id(array)] = SharedArray(array, self._last, handle, writable)
        tables = [self._numbers(arrays) for arrays in frame.arrays]
        return OutgoingFrame(frame, tables, self._numbers(frame.dense))

    def message(self, outgoing: OutgoingFrame, held: frozenset[int]) -> tuple[Message, list[int]]:
        """Return the frame's message and descriptors for a worker that holds the arrays of these numbers."""
        packer = ArrayPacker()
        named = outgoing.numbers - held
        new = [(n.number, packer.pack(n.handle, n.writable)) for n in self._shared.values() if n.number in named]
        message = {"frame": outgoing.frame.number, "new": new, "tables": outgoing.tables, "dense": outgoing.dense}
        return message, packer.fds

    def settle(self, outgoing: OutgoingFrame) -> None:
        """Drop all arrays but those of the frame that every worker now holds."""
        numbers = outgoing.numbers
        self._shared = {key: n for key, n in self._shared.items() if n.number in numbers}

    def _numbers(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        return {name: self._shared[id(array)].number for name, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class ReceivedPackage:
    """A version's files as they were received, mapped."""

    manifest: Manifest
    files: Mapping[str, NDArray[Any]]

    def file(self, name: str) -> bytes:
        """Return the content of a file. Raises Corrupt unless it matches its checksum."""
        data = self.files[name].tobytes() if name in self.files else b""
        if crc32(data) != self.manifest.files[name].crc32:
            raise Corrupt(f"{name}: does not match its checksum")
        return data


class FrameReceiver:
    """Receives one version's changes in a worker: its replica, and the arrays that it holds."""

    def __init__(
        self,
        message: Message,
        unpacker: ArrayUnpacker,
        options_of: Callable[[str], GroupOptions],
        clock: Clock,
        remote: RemoteTables | None = None,
        lookups: InputLookups = NO_LOOKUPS,
        states: ProcessStates | None = None,
    ) -> None:
        """Make the replica from the "open" message, as FrameSender.opening() builds it.

        Args:
            unpacker: Maps the message's arrays.
            options_of: Returns the options of a model's session group.
            remote: Reader of tables in a remote store.
            lookups: Looks up inputs in this process.
            states: Keeps users' parts in this process.
        """
        files = {name: unpacker.unpack(packed) for name, packed in message["files"].items()}
        package = ReceivedPackage(Manifest.from_json(message["manifest"].encode()), files)
        control = ControlWords(unpacker.unpack(message["control"]))
        options = options_of(package.manifest.model)
        self.replica = Replica(
            package,
            control,
            message["process"],
            options.threads_per_session,
            clock,
            options.all_cpus,
            remote,
            options.runs,
            lookups,
            states,
            options.device_rows_mb << 20,
        )
        self._arrays: dict[int, NDArray[Any]] = {}
        self._dense_numbers: dict[str, int] = {}
        self._dense: dict[str, NDArray[np.float32]] = {}

    def prepare(self, message: Message, unpacker: ArrayUnpacker) -> None:
        """Prepare the replica for the frame of FrameSender.message(); raise the reason if it cannot serve the frame."""
        new: Iterable[tuple[int, PackedArray]] = message["new"]
        arrays = self._arrays | {number: unpacker.unpack(packed) for number, packed in new}
        numbers = message["dense"]
        same = self._dense and numbers == self._dense_numbers
        dense = self._dense if same else {name: arrays[number] for name, number in numbers.items()}
        tables = tuple({name: arrays[number] for name, number in names.items()} for names in message["tables"])
        for names in message["tables"]:
            if "ring" in names:
                # As the table itself does if it has a memory budget: advice belongs to a mapping, not to a file.
                for number in (names["base"], names["log"]):
                    if number not in self._arrays:
                        advise(arrays[number], mmap.MADV_RANDOM)
        self.replica.prepare(Frame(message["frame"], tables, dense))
        named = {n for names in (*message["tables"], numbers) for n in names.values()}
        self._arrays = {number: array for number, array in arrays.items() if number in named}
        self._dense, self._dense_numbers = dense, numbers

    def example(self) -> dict[str, str]:
        """Return an example request as JSON text; empty if there is none."""
        request = self.replica.example()
        return texts(request, self.replica.manifest.read_inputs) if request else {}

    def kept(self) -> str:
        """Return the kept requests in base64."""
        return b64encode(self.replica.kept()).decode()

    def remember(self, message: Message) -> None:
        self.replica.remember(b64decode(message["requests"]))

    def score(self, message: Message) -> str | None:
        """Score kept requests; return the scores in base64, or None if they cannot be computed."""
        scores = self.replica.score(b64decode(message["requests"]), message["seconds"])
        return None if scores is None else b64encode(dump_scores(scores)).decode()

    def preview(self, message: Message) -> list[Any] | None:
        """Preview a frame before it is served; return the result as JSON lists, or None."""
        generation = Generation(self.replica.manifest.version, message["step"], message["digest"])
        max_rows, max_s = message["rows"], message["seconds"]
        result = self.replica.preview(message["frame"], message["epoch"], generation, max_rows, max_s)
        return None if result is None else [result.rows, result.seconds, [list(figure) for figure in result.figures]]
