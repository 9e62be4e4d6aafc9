"""Store the trainer's checkpoints, from which a killed run resumes exactly.

One file is one checkpoint, committed by rename. <number>.full.safetensors holds everything. <number>.inc.safetensors
holds the table rows that changed since the checkpoint before (with optimizer slots and counts), new events of
histories, the whole dense network with its optimizer, and in its metadata the run's state. Restoring reads the newest
full checkpoint and the increments after it. A full one is written once the increments outweigh the last one, so a
checkpoint costs O(changes), amortised. Older ones are then removed, except those for generations that servers can undo
to. Users who are to be forgotten are removed from those, too, before their request counts as answered.

Order of commits: the increment, the delta made of the same changes, perhaps a full checkpoint. So a run can continue
from every served delta, and a delta whose publication a kill prevented is published on resume, byte for byte.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.saved_events import without_users
from freshet_serving.models.data.sequence_columns import Histories, SequenceSource
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.evaluation.row_layers import RowLayer, RowLayers
from freshet_serving.models.training.batch_borders import BatchBorders
from freshet_serving.models.training.divergence import check_weights
from freshet_serving.processor.errors import Corrupt, NotReady
from freshet_serving.processor.package import (
    Tensors,
    array_crc32,
    atomic_file,
    header_checksum,
    map_file,
    parse_tensors,
    write_tensors,
)
from freshet_serving.processor.repository import NO_SCALES, Erasures

if TYPE_CHECKING:
    # Code that only reads tables needs no TensorFlow.
    from freshet_serving.models.training.trainer import Trainer

FORMAT = "freshet-checkpoint/1"
FILE = re.compile(r"([0-9]{1,12})\.(full|inc)\.safetensors")
HISTORIES = "histories"
TABLE_PARTS = tuple(f.name for f in dataclasses.fields(Changes))


@dataclasses.dataclass(slots=True)
class RunState:
    """State of a training run; fields that an older file lacks have their defaults.

    Attributes:
        scaling: (mean, 1 / standard deviation) of float features, measured once.
        position: Rows consumed in this epoch.
        version: The published version; 0 for none yet.
        step: Newest step of its change log.
        finished_at: Unix time of the newest step.
        event_time: Times of the first and last event of the newest step.
        events: Number of events of the newest step.
        digest: Digest of the newest step's generation; "" for step 0.
        parent: Digest of the generation before it; "" for step 0.
        settings: Settings behind the fingerprint (models.training.fingerprint).
        train: Defaults filled in for [train] (models.training.defaults).
        full_rows: publish.full_rows when the version was made; None before.
        epoch_scores: By judged epoch, higher is better.
        version_row: Position when the version was made.
        guard: Usual figures of windows (models.training.window_guard).
        hash_seeds: By table of strings, drawn once; 0 for a table without one.
        refused: The gate has refused the version: no run continues from it unless it was released.
        data: Which rows were learned (models.training.learned_rows).
        histories: By sequence, which store has all histories (models.streams.history_writer).
        entities: Marks of the newest generation's entities (models.training.entity_deltas).
        parent_entities: Those of the generation before it.
        popularity: The clock of a next-item network's counts (models.training.item_counts); {} without one.
        sources: What ranks items for everybody (models.training.item_sources); {} without it.
        log_odds: By label, measured once.
        borders: Mark of the steps of deltas (models.training.batch_borders); [] before the first one.
        withheld: Number of newest deltas that lack the dense weights (models.training.lineage).
    """

    fingerprint: str
    scaling: dict[str, tuple[float, float]]
    epoch: int = 0
    position: int = 0
    version: int = 0
    step: int = 0
    finished_at: float = 0.0
    event_time: tuple[float, float] | None = None
    events: int = 0
    digest: str = ""
    parent: str = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: dict[str, Any] = dataclasses.field(default_factory=dict)
    full_rows: int | None = None
    epoch_scores: list[float] = dataclasses.field(default_factory=list)
    version_row: int = 0
    guard: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    hash_seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    refused: bool = False
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    histories: dict[str, str] = dataclasses.field(default_factory=dict)
    entities: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    parent_entities: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    popularity: dict[str, Any] = dataclasses.field(default_factory=dict)
    sources: dict[str, Any] = dataclasses.field(default_factory=dict)
    log_odds: list[float] = dataclasses.field(default_factory=list)
    borders: list[int] = dataclasses.field(default_factory=list)
    withheld: int = 0

    def begin_version(self, number: int, finished_at: float) -> None:
        """Make this the state of a new version, finished at a Unix time."""
        self.version, self.step, self.digest, self.parent = number, 0, "", ""
        self.finished_at, self.event_time, self.events, self.withheld = finished_at, None, 0, 0

    def go_back(self, before: RunState) -> None:
        """Take over version and step of an earlier state, but not its position."""
        self.version, self.step, self.refused = before.version, before.step, False
        self.digest, self.parent, self.finished_at = before.digest, before.parent, before.finished_at
        self.entities, self.parent_entities, self.withheld = before.entities, before.parent_entities, before.withheld

    def learned(self, batch: Batch) -> None:
        self.position, self.events = batch.end, self.events + batch.stream_rows
        if batch.time is not None:
            first, last = float(batch.time.min()), float(batch.time.max())
            times = self.event_time or (first, last)
            self.event_time = min(times[0], first), max(times[1], last)

    def resumed(self, rows: int | None, full_rows: int) -> Iterator[str]:
        """Yield lines about a run that continues from this state; `rows` is None for endless data."""
        line = f"resumed at row {self.position}, generation {self.version}.{self.step}"
        ended = self.version and rows is not None and rows <= self.position
        yield f"{line}: the data have no rows after it, so nothing is trained on" if ended else line
        if self.version and self.full_rows not in (None, full_rows):
            yield (
                f"publish.full_rows is {full_rows:,} and was {self.full_rows:,} when version {self.version} was made,"
                " which does not change; --new-version --from-scratch trains another one"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A restored checkpoint; `changes` are those of the newest increment, None after a full checkpoint."""

    state: RunState
    changes: dict[str, Changes] | None


class Checkpoints:
    """A folder of checkpoints of one model, written by one trainer."""

    def __init__(self, folder: Path, source: Source | None = None) -> None:
        """Open or create the folder, and remove what a killed run left; histories of `source` are stored, too."""
        self.folder, self.borders = folder, BatchBorders(folder)
        self._histories, self._erasures = (source if isinstance(source, SequenceSource) else None), Erasures(folder)
        if self._histories is not None:
            self._histories.saved = self.saved_histories
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".*.tmp"):
            unfinished.unlink()
        files = _files(self.folder)
        self._number = files[-1][0] if files else 0
        full = next((i for i in reversed(range(len(files))) if files[i][1] == "full"), 0)
        sizes = [path.stat().st_size for _, _, path in files[full:]]
        self._full_nbytes, self._increment_nbytes = (sizes[0] if sizes else 0), sum(sizes[1:])
        self._states: dict[int, RunState] = {}
        # Requests to forget a user that are answered once older checkpoints are rewritten.
        self._forgotten: dict[int, Path] = {}

    def save(self, trainer: Trainer, state: RunState) -> None:
        """Commit an increment, or everything the first time; clears the changes. Raises BadInput on divergence."""
        if self._full_nbytes == 0:
            self.save_full(trainer, state)
        else:
            changes = changes_of(trainer)
            check_weights(changes, trainer, self.newest)
            self.save_changes(trainer, state, changes)
        clear_changed(trainer)

    def save_changes(self, trainer: Trainer, state: RunState, changes: dict[str, Changes]) -> None:
        """Commit an increment of these changes, which are finite; does not clear them."""
        self._increment_nbytes += self._write("inc", trainer, state, changes)
        self._forget()

    def compact(self, trainer: Trainer, state: RunState, wanted: Callable[[], Collection[int]] = tuple) -> None:
        """Write a full checkpoint once the increments outweigh the last one.

        Nothing may have changed since the last save(), and its changes must be published, because a full checkpoint
        does not record what the increments before it changed. `wanted` returns save_full()'s `wanted`.
        """
        if self._increment_nbytes > self._full_nbytes:
            self.save_full(trainer, state, wanted())

    def save_full(self, trainer: Trainer, state: RunState, wanted: Collection[int] = ()) -> None:
        """Commit a full checkpoint and remove older ones, except `wanted`, which stay restorable."""
        tables = {name: table.export() for name, table in trainer.tables.items()}
        check_weights(tables, trainer, self.newest)
        self._full_nbytes, self._increment_nbytes = self._write("full", trainer, state, tables), 0
        files = _files(self.folder)
        oldest = min(wanted, default=self._number)
        first = max((n for n, kind, _ in files if kind == "full" and n <= oldest), default=oldest)
        for number, _, path in files:
            if number < first:
                path.unlink()
                self._states.pop(number, None)
        self._forget()

    def erase_asked(self, trainer: Trainer, state: RunState, wanted: Callable[[], Collection[int]] = tuple) -> None:
        """Forget the users that a trainer is asked to forget; conditions and `wanted` as for compact()."""
        if self._histories is not None and self._erasures.asked():
            self.save_full(trainer, state, wanted())

    def states(self) -> list[tuple[int, RunState]]:
        """Return every restorable checkpoint, by ascending number, with its state. Raises Corrupt."""
        files = _files(self.folder)
        first = next((i for i, (_, kind, _) in enumerate(files) if kind == "full"), len(files))
        for number, _, path in files[first:]:
            if number not in self._states:
                self._states[number] = _state(_open(path))
        return [(number, self._states[number]) for number, _, _ in files[first:]]

    def newest(self) -> RunState | None:
        """Return the state of the newest checkpoint without its weights; None if there is none."""
        return newest_state(self.folder)

    def saved_histories(self, position: int) -> Histories | None:
        """Return, by sequence, what checkpoints have of the rows up to a position; None if nothing."""
        parts: dict[str, list[dict[str, NDArray[Any]]]] = {}
        for _, _, path in _files(self.folder):
            read = _parts(_verified(path, HISTORIES))
            if not read or any(int(arrays["position"][0]) > position for arrays in read.values()):
                continue
            if all("counts" in arrays for arrays in read.values()):
                parts = {}
            elif any(
                sequence not in parts or int(arrays["since"][0]) != int(parts[sequence][-1]["position"][0])
                for sequence, arrays in read.items()
            ):
                continue
            for sequence, arrays in read.items():
                parts.setdefault(sequence, []).append(arrays)
        return parts or None

    def restore(self, trainer: Trainer, number: int | None = None) -> RestoredCheckpoint | None:
        """Restore the trainer from checkpoint `number`, or the newest; None if there is none. Raises Corrupt."""
        files = [file for file in _files(self.folder) if number is None or file[0] <= number]
        full = [i for i, (_, kind, _) in enumerate(files) if kind == "full"]
        if not full:
            return None
        restored: RestoredCheckpoint | None = None
        self.borders.forget()
        trainer.clear()
        for expected, (actual, kind, path) in enumerate(files[full[-1] :], files[full[-1]][0]):
            if actual != expected:
                raise Corrupt(f"checkpoint: number {expected} is missing between the last full one and {path.name}")
            restored = self._read(path, kind, trainer)
        if restored is not None and restored.state.version and not restored.state.borders:
            # Of an older release, which wrote no borders.
            self.borders.interrupted(restored.state.position)
        return restored

    def _write(self, kind: str, trainer: Trainer, state: RunState, tables: dict[str, Changes]) -> int:
        arrays: dict[str, NDArray[Any]] = {}
        for name, changes in tables.items():
            for part in TABLE_PARTS:
                arrays[f"tables/{name}/{part}"] = getattr(changes, part)
        for name, table in trainer.tables.items():
            filtered = table.admission.export() if kind == "full" else table.admission.changes()
            arrays |= {f"admission/{name}/{part}": array for part, array in filtered.items()}
        arrays |= {f"dense/{name}": array for name, array in trainer.dense.weights().items()}
        arrays |= {f"optimizer/{name}": array for name, array in trainer.dense.state.optimizer().items()}
        arrays |= {f"trainer/{name}": array for name, array in trainer.saved(whole=kind == "full").items()}
        asked = self._erasures.asked() if self._histories is not None else {}
        seen: dict[str, NDArray[Any]] | None = None
        if self._histories is not None:
            try:
                if asked:
                    self._histories.erase(np.array(sorted(asked), np.int64), state)
            except NotReady:
                # Asked again by the next checkpoint.
                asked = {}
            seen = None if kind == "full" else self._histories.saved_part(state.position, whole=False)
            seen = seen if seen is not None else self._histories.saved_part(state.position, whole=True)
            arrays |= {f"{HISTORIES}/{name}": array for name, array in (seen or {}).items()}
        state.borders = self.borders.commit(state.borders)
        metadata = {
            "format": FORMAT,
            "steps": str(trainer.steps),
            "state": json.dumps(as_saved(state)),
            "checksums": json.dumps({name: array_crc32(a) for name, a in arrays.items()}),
        }
        metadata["checksum"] = header_checksum(metadata, arrays)
        path = self.folder / f"{self._number + 1:08d}.{kind}.safetensors"
        with atomic_file(path) as file:
            write_tensors(file, arrays, metadata)
        self._forgotten = asked if seen else {}
        self._number += 1
        self._states[self._number] = dataclasses.replace(state)
        return path.stat().st_size

    def _forget(self) -> None:
        """Remove the users that the newest checkpoint has forgotten from older ones, and answer the requests."""
        if not self._forgotten:
            return
        for _, _, path in _files(self.folder)[:-1]:
            _rewrite_without(path, np.array(sorted(self._forgotten), np.int64))
        self._erasures.answered(self._forgotten.values())
        self._forgotten = {}

    def _read(self, path: Path, kind: str, trainer: Trainer) -> RestoredCheckpoint:
        tensors = _verified(path)
        groups: dict[str, dict[str, NDArray[Any]]] = {"dense": {}, "optimizer": {}, "admission": {}, "trainer": {}}
        for name, array in tensors.arrays.items():
            group, _, rest = name.partition("/")
            if group in groups:
                groups[group][rest] = array
        changes = {
            table: Changes(**{part: tensors.arrays[f"tables/{table}/{part}"] for part in TABLE_PARTS})
            for table in trainer.tables
            # An older release had no table of items' sources.
            if f"tables/{table}/keys" in tensors.arrays
        }
        for name, table in trainer.tables.items():
            if name in changes:
                table.restore(changes[name])
            filtered = {p.rpartition("/")[2]: a for p, a in groups["admission"].items() if p.rpartition("/")[0] == name}
            if filtered:
                table.admission.restore(filtered)
        trainer.dense.state.restore(groups["dense"], groups["optimizer"])
        trainer.restore_saved(groups["trainer"])
        trainer.count_from(int(tensors.metadata["steps"]))
        return RestoredCheckpoint(_state(tensors), changes if kind == "inc" else None)


def as_saved(state: RunState) -> dict[str, Any]:
    """Return a state in its stored form."""
    return dataclasses.asdict(state)


def changes_of(trainer: Trainer) -> dict[str, Changes]:
    """Return the changes of each table since clear_changed()."""
    return {name: table.changes() for name, table in trainer.tables.items()}


def clear_changed(trainer: Trainer) -> None:
    """Start a new set of changes in each table."""
    for table in trainer.tables.values():
        table.clear_changed()


def newest_state(folder: Path) -> RunState | None:
    """Return the state of the newest checkpoint of a folder without its weights; None if there is none."""
    files = _files(folder)
    return _state(_open(files[-1][2])) if files else None


@dataclasses.dataclass(frozen=True, slots=True)
class MappedCheckpoint:
    """The newest checkpoint, memory-mapped; of each table the newest increment first, down to the full checkpoint."""

    state: RunState
    steps: int
    tables: dict[str, list[Changes]]

    def rows(self, name: str, dim: int) -> RowLayers | None:
        """Return a table as the trainer had it; None if it had no rows of width `dim`."""
        layers = self.tables.get(name, [])
        if not layers or any(c.rows.shape[1:] != (dim,) for c in layers):
            return None
        row_layers = [RowLayer(c.keys, c.rows, NO_SCALES, c.removed, c.counts, c.last_step) for c in layers]
        return RowLayers(name, dim, row_layers)

    def slots_nbytes(self, name: str) -> int:
        """Return the bytes of optimizer state of a row."""
        layers = self.tables.get(name)
        return layers[0].slots.shape[1] * layers[0].slots.itemsize if layers else 0


def map_newest(folder: Path) -> MappedCheckpoint | None:
    """Map the newest checkpoint without reading its tables, safely beside the trainer that writes; None without one."""
    files = _files(folder) if folder.is_dir() else []
    full = [i for i, (_, kind, _) in enumerate(files) if kind == "full"]
    if not full:
        return None
    layers = []
    for _, _, path in files[full[-1] :]:
        try:
            layers.append(_verified(path))
        except FileNotFoundError:
            # Removed since it was listed, because a new full checkpoint exists.
            return map_newest(folder)
    tables: dict[str, list[Changes]] = {}
    for tensors in reversed(layers):
        names = {name.split("/")[1] for name in tensors.arrays if name.startswith("tables/")}
        for name in sorted(names):
            parts = {part: tensors.arrays[f"tables/{name}/{part}"] for part in TABLE_PARTS}
            tables.setdefault(name, []).append(Changes(**parts))
    return MappedCheckpoint(_state(layers[-1]), int(layers[-1].metadata["steps"]), tables)


def _files(folder: Path) -> list[tuple[int, str, Path]]:
    matches = [(FILE.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), match[2], path) for match, path in matches if match)


def _verified(path: Path, group: str = "") -> Tensors:
    tensors = _open(path)
    checksums = json.loads(tensors.metadata["checksums"])
    for name, array in tensors.arrays.items():
        if name.startswith(group) and array_crc32(array) != checksums.get(name):
            raise Corrupt(f"{path.name}: tensor {name!r} does not match its checksum")
    return tensors


def _parts(tensors: Tensors) -> dict[str, dict[str, NDArray[Any]]]:
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in tensors.arrays.items():
        group, _, rest = name.partition("/")
        if group == HISTORIES:
            sequence, _, key = rest.rpartition("/")
            parts.setdefault(sequence, {})[key] = array
    return parts


def _rewrite_without(path: Path, users: NDArray[np.int64]) -> None:
    """Replace a checkpoint by one without some users' events, if it has any; verifies nothing else."""
    tensors, changed = _open(path), dict[str, NDArray[Any]]()
    for sequence, part in _parts(tensors).items():
        if (arrays := without_users(part, users)) is not None:
            changed |= {f"{HISTORIES}/{sequence}/{key}": array for key, array in arrays.items()}
    if not changed:
        return
    arrays = tensors.arrays | changed
    metadata = dict(tensors.metadata)
    checksums = json.loads(metadata["checksums"]) | {name: array_crc32(array) for name, array in changed.items()}
    metadata["checksums"] = json.dumps(checksums)
    del metadata["checksum"]
    metadata["checksum"] = header_checksum(metadata, arrays)
    with atomic_file(path) as file:
        write_tensors(file, arrays, metadata)


def _open(path: Path) -> Tensors:
    """Map a checkpoint file after verifying its header; tensors are verified when they are read."""
    tensors = parse_tensors(map_file(path), path.name)
    metadata = tensors.metadata
    if metadata.get("format") != FORMAT:
        raise Corrupt(f"{path.name}: expected format {FORMAT!r}, got {metadata.get('format', '')[:40]!r}")
    if metadata.get("checksum") != header_checksum(metadata, tensors.arrays):
        raise Corrupt(f"{path.name}: the header does not match its checksum")
    return tensors


def _state(tensors: Tensors) -> RunState:
    raw = json.loads(tensors.metadata["state"])
    raw["scaling"] = {name: (pair[0], pair[1]) for name, pair in raw["scaling"].items()}
    raw["event_time"] = tuple(raw["event_time"]) if raw["event_time"] else None
    for marks in ("entities", "parent_entities"):
        raw[marks] = {name: (pair[0], pair[1]) for name, pair in raw.get(marks, {}).items()}
    return RunState(**raw)
