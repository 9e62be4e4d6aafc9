"""Tiered storage for a table larger than its memory: hot rows in the arena, cold ones on disk, with the same scores.

Cold rows are read in place, through read-only mappings of the version's file (rows as published) and of a log (rows
that deltas have changed). The page cache behind them is not counted as the process's memory and is dropped under memory
pressure. The budget limits what the process must hold: arena, meta and the per-slot bookkeeping. It does not include
the index, nor the row versions of deltas that can still be undone, which are in the arena whatever the budget; settled
rows must fit into what is left.

Invariants
- Readers never block and never lock, and a row has the same bits in every tier. To move a row, write its copy where
  nothing points, then replace its old ref by one release store (kernels.row_tiering).
- Meta marks a settled slot that copies a row of the file or a record of the log; such a slot is demoted by one store. A
  slot with a delta's own row (meta says ABSENT) is written to the log first.
- The place that a row has left, a slot or a segment of the log, is reused only after every reader has reached a later
  flip.
- A record is live while a head, a row version or a settled slot refers to it. Log compaction copies the live records of
  the emptiest segment to the tail, slice by slice, and then frees the segment.
- Nothing here has to survive a crash: the log is a file without a name, and the table is rebuilt from the version and
  its deltas.
- On a full disk nothing moves: rows stay in memory, beyond the budget, until there is room again. The same holds when
  memory is short: arrays are allocated before the first ref moves. An interrupted change is marked (torn).

Which rows are hot: LFU. Training's frequencies choose the first ones (table file); then one lookup in SAMPLE is
counted, for hot rows in one byte per slot, for cold rows through a ring that maintain() drains into a count-min sketch.
A cold row replaces the coldest of a few hot ones if it was read more often (TinyLFU; Einziger et al., 2017). All counts
are halved after AGE samples per slot. Counting is racy on purpose: lost counts make the ranking slightly worse, but no
lookup wrong.

Costs: for a table without a budget one comparison with a field that is read anyway. maintain() works in slices of at
most MOVES rows.

Rejected: a separate cache beside the arena (a third place to look up, and invalidation on every delta); reading cold
rows by system calls (one for each row, even in the page cache); deduplicating ids within a batch (of a batch's cold
rows under Zipf-1.05, one in 2,400 occurs twice).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.kernels import row_tiering as tiers
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.kernels.lookup_notes import MOST_HITS, SAMPLE
from freshet_serving.processor.memory import advise, reserve
from freshet_serving.processor.package import STORED_TYPES, TableEntry
from freshet_serving.processor.tables.arena import SlotAllocator
from freshet_serving.processor.tables.row_log import SEGMENT_RECORDS, RowLog, record_nbytes

MOVES = 1024
NOTES = 4096
SCAN_A_MOVE = 8
AGE = 16
SKETCH_ROWS, LEAST_CELLS, MOST_CELLS = 4, 1 << 12, 1 << 27
COMPACT_RECORDS = 2048
DROP_S = 30.0

# Per slot, besides its row and scale: meta, key, flag, count, and its share of the sketch.
SLOT_BOOKS_NBYTES = 16 + 8 + 1 + 1 + SKETCH_ROWS

Int64s = NDArray[np.int64]
Read = tuple[Int64s, NDArray[np.uint8]]
_NOBODY: Read = (np.empty(0, np.int64), np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True)
class TierStats:
    """A snapshot of a tiered table: settled rows in memory, sampled lookups, and emptied log segments."""

    hot_rows: int
    hot_lookups: int
    cold_lookups: int
    log_nbytes: int
    compactions: int


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """Bookkeeping changes for row versions about to be settled.

    `gone` are slots that are no longer settled; `dead` counts dead records by log segment, `hot` settled rows then.
    """

    keys: Int64s
    slots: Int64s
    counts: NDArray[np.uint8]
    gone: Int64s
    dead: Int64s
    hot: int


class Tier:
    """The writer's bookkeeping of one table's tiers; methods expect the table's current descriptor."""

    def __init__(
        self, spec: TableEntry, slots: SlotAllocator, meta: NDArray[np.int64], budget_nbytes: int, scratch: Path
    ) -> None:
        """Reserve the bookkeeping arrays and open the log in the scratch folder; raise BadInput if that fails."""
        self._slots, self._meta = slots, meta
        kind = STORED_TYPES[spec.dtype]
        slot_nbytes = spec.dim * kind.dtype.itemsize + (4 if kind.scaled else 0) + SLOT_BOOKS_NBYTES
        self._budget = max(1, budget_nbytes // slot_nbytes)
        self._log = RowLog(spec.name, record_nbytes(spec), scratch)
        self._keys = reserve(slots.capacity * 8, f"keys-{spec.name}").view(np.int64)[: slots.capacity]
        self._settled = reserve(slots.capacity, f"settled-{spec.name}").view(np.bool_)[: slots.capacity]
        self._hits = reserve(slots.capacity, f"hits-{spec.name}")[: slots.capacity]
        words = row_kernels.RING_HEADER + row_kernels.RING_KEYS
        self._ring = reserve(words * 8, f"ring-{spec.name}").view(np.int64)[:words]
        cells = max(LEAST_CELLS, 1 << (min(self._budget, MOST_CELLS) - 1).bit_length())
        self._sketch = np.zeros((SKETCH_ROWS, cells), np.uint8)
        self._hot = 0
        self._drained = self._aged = 0
        self._hand = self._compacting = 0
        self._segment = -1
        self._wanted = _NOBODY
        self._compactions = 0
        self._dropped_s = -np.inf
        self.torn = False
        """True if a change of the bookkeeping was interrupted; see ServedTable.torn."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that readers use: log uint8, hits uint8 [slots], ring int64 (kernels.rows)."""
        return {"log": self._log.file.array, "hits": self._hits, "ring": self._ring}

    @property
    def nbytes(self) -> int:
        """Memory of the bookkeeping, besides the arena and its meta."""
        return self._slots.bump * 10 + self._sketch.nbytes + self._ring.nbytes

    def tally(self) -> TierStats:
        return TierStats(
            hot_rows=self._hot,
            hot_lookups=int(self._ring[2]),
            cold_lookups=int(self._ring[1]),
            log_nbytes=self._log.nbytes,
            compactions=self._compactions,
        )

    def fill(self, table: Int64s, keys: Int64s, frequencies: NDArray[np.uint32]) -> None:
        """Promote the rows that training used most (uint32 [n] by key) into an empty arena, up to the budget."""
        count = min(self._budget, len(keys))
        if count:
            most = np.argpartition(frequencies, len(keys) - count)[len(keys) - count :]
            counts = np.minimum(frequencies[most], MOST_HITS).astype(np.uint8)
            self.promote(table, keys[most], counts)

    def plan_vacuum(
        self, keys: Int64s, slots: Int64s, replaced: Int64s, rows: NDArray[np.bool_], dead: Int64s
    ) -> VacuumPlan:
        """Compute the bookkeeping after row versions are vacuumed (settled); change nothing.

        `slots` hold the versions; the other arrays, all [m], are those of kernels.rows.plan_vacuum.
        """
        stay, before = keys[rows], replaced[rows]
        counts = np.zeros(len(stay), np.uint8)
        tiers.estimate(self._sketch, stay, counts)
        was_hot = before >= 0
        counts[was_hot] = np.maximum(counts[was_hot], self._hits[before[was_hot]])
        gone = replaced[replaced >= 0]
        hot = self._hot + len(stay) - len(gone)
        return VacuumPlan(stay, slots[rows], counts, gone, self._log.count(dead[dead >= 0]), hot)

    def vacuum(self, coming: VacuumPlan) -> None:
        """Apply the bookkeeping changes that plan_vacuum() returned."""
        self.torn = True
        self._settled[coming.gone] = False
        self._keys[coming.slots] = coming.keys
        self._hits[coming.slots] = coming.counts
        self._settled[coming.slots] = True
        self._log.drop_records(coming.dead)
        self._hot = coming.hot
        self.torn = False

    def reclaim(self, oldest_seq: int) -> None:
        self._log.reclaim(oldest_seq)

    def maintain(self, table: Int64s, safe_seq: int, now_s: float, base: NDArray[Any]) -> bool:
        """Maintain the tiers, one slice: count reads, demote, promote, compact the log, release pages now and then.

        Returns True if freed places wait for safe_seq, the next flip.
        """
        read = self._drain()
        self._age()
        excess = self._slots.used - self._budget
        if excess > 0:
            self.demote(table, self._coldest(min(excess, self._hot, MOVES))[0], safe_seq)
        self._exchange(table, read, safe_seq)
        self._compact(table, safe_seq)
        if now_s - self._dropped_s >= DROP_S:
            self._dropped_s = now_s
            for cold in (base, self._log.file.array):
                advise(cold, mmap.MADV_DONTNEED)
        return self._slots.waiting > 0 or self._log.waiting

    def promote(self, table: Int64s, keys: Int64s, counts: NDArray[np.uint8]) -> int:
        """Copy cold rows among int64 keys [n], read so often (uint8 [n]), into memory; return how many there were."""
        slots = self._slots.allocate(len(keys))
        self.torn = True
        used: int = tiers.promote(table, keys, counts, slots, self._keys, self._settled, self._hits)
        self._slots.free(slots[used:])
        self._hot += used
        self.torn = False
        return used

    def demote(self, table: Int64s, slots: Int64s, safe_seq: int) -> int:
        """Move settled slots out of memory, writing rows of deltas to the log; return how many, fewer on a full disk.

        The slots are reused once every reader has reached `safe_seq`, the next flip.
        """
        origins = self._meta[slots, 1]
        clean = origins >= 0
        changed = slots[~clean]
        # Slots that need no log record come first: they can be demoted even on a full disk.
        done = np.concatenate([slots[clean], changed])
        keys, refs, copied = self._keys[done], done + row_kernels.SETTLED, len(done) - len(changed)
        targets = np.concatenate([origins[clean], changed])
        self.torn = True
        count = copied + self._write(table, keys[copied:], refs[copied:], targets[copied:])
        done = done[:count]
        tiers.repoint(table, keys[:count], refs[:count], targets[:count])
        self._settled[done] = False
        self._slots.free_deferred(done, safe_seq)
        self._hot -= count
        self.torn = False
        return count

    def _exchange(self, table: Int64s, read: Read, safe_seq: int) -> None:
        """Promote cold rows into free room; for those hotter than the coldest hot rows, make room at the next flip."""
        keys, counts = (np.concatenate([w, r]) for w, r in zip(self._wanted, read))
        self._wanted = _NOBODY
        room = max(0, min(MOVES, self._budget - self._slots.used - self._slots.waiting))
        self.promote(table, keys[:room], counts[:room])
        keys, counts = keys[room:], counts[room:]
        if not len(keys) or self._slots.waiting >= MOVES:
            return
        victims, hits = self._coldest(min(len(keys), self._hot, MOVES))
        hotter = int(np.count_nonzero(counts[: len(victims)] > hits))
        self._wanted = keys[:hotter], counts[:hotter]
        self.demote(table, victims[:hotter], safe_seq)

    def _compact(self, table: Int64s, safe_seq: int) -> None:
        """Move the live records among the next ones of the segment that is being emptied."""
        if self._segment < 0:
            self._segment, self._compacting = self._log.emptiest(), 0
        if self._segment < 0:
            return
        if self._log.live_in(self._segment):
            first = self._segment * SEGMENT_RECORDS
            stop = min(self._compacting + COMPACT_RECORDS, SEGMENT_RECORDS)
            keys, refs, written = (np.empty(COMPACT_RECORDS, np.int64) for _ in range(3))
            count = tiers.survivors(table, first + self._compacting, first + stop, keys, refs)
            self.torn = True
            moved = self._write(table, keys[:count], refs[:count], written[:count])
            tiers.repoint(table, keys[:moved], refs[:moved], written[:moved])
            self._log.drop_moved(self._segment, moved)
            self.torn = False
            if moved < count:
                return
            self._compacting = stop
        if not self._log.live_in(self._segment):
            self._log.free_segment(self._segment, safe_seq)
            self._compactions += 1
            self._segment = -1

    def _write(self, table: Int64s, keys: Int64s, refs: Int64s, written: Int64s) -> int:
        """Append rows to the log and fill `written` with their new refs; return how many: fewer on a full disk."""
        at = 0
        while at < len(keys):
            try:
                first, count = self._log.place(len(keys) - at)
            except OSError:
                break
            tiers.record(table, keys[at : at + count], refs[at : at + count], first, written[at : at + count])
            self._log.commit(count)
            at += count
        return at

    def _coldest(self, count: int) -> tuple[Int64s, NDArray[np.uint8]]:
        """Return slots and read counts, ascending by count, of the least read among the next few settled rows."""
        slots = np.empty(min(count * SCAN_A_MOVE, self._hot), np.int64)
        settled = tiers.gather_settled(self._settled, self._hand % max(1, self._slots.bump), self._slots.bump, slots)
        slots = slots[:settled]
        if settled:
            self._hand = int(slots[-1]) + 1
        hits = self._hits[slots]
        order = np.argsort(hits, kind="stable")[:count]
        return slots[order], hits[order]

    def _drain(self) -> Read:
        """Return the distinct cold keys noted since the last call, the most read first, with their counts."""
        position = int(self._ring[0])
        count = min(position - self._drained, NOTES)
        self._drained = position
        if not count:
            return _NOBODY
        places = np.arange(position - count, position) % row_kernels.RING_KEYS
        keys = self._ring[row_kernels.RING_HEADER + places]
        counts = np.empty(count, np.uint8)
        tiers.count_up(self._sketch, keys, counts)
        # Counts only rise: the last note of a key has its highest count.
        keys, last = np.unique(keys[::-1], return_index=True)
        counts = counts[::-1][last]
        order = np.argsort(counts, kind="stable")[::-1]
        return keys[order], counts[order]

    def _age(self) -> None:
        samples = (int(self._ring[1]) + int(self._ring[2])) // SAMPLE
        if samples - self._aged >= AGE * self._budget:
            self._aged = samples
            self._hits[: self._slots.bump] >>= 1
            self._sketch >>= 1
