"""Explain an item's place among one user's best items: why it is there, or what leaves it out.

The list is made as item_ranker makes it (best_items). The user's vector is the one that the explainer computed for the
item as the only candidate (processor.extensions.explaining).

Invariants
- The caller holds the version's lock. All that is read here is of one epoch.
- Codes hold for the served epoch alone. For an earlier one all rows are read by key, of at most MOST_PAST_ITEMS items.
- Items' vectors of two towers are kept for the served generation alone, and may lag. For an earlier one the item's own
  vector is what its graph computes, and neither its place nor near events are known.

Costs: that of a request for MAX_TOP_ITEMS items, while deltas of the version wait; `max_ids` bounds it as there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, FreshetError, TooLarge
from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.asked_source import AskedSource, histories_of
from freshet_serving.processor.extensions.top_items.best_items import RankedTable, best_items
from freshet_serving.processor.extensions.top_items.chosen_items import ChosenItems, chosen_items, keys_of_ids
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity, ItemFilter, keys_at
from freshet_serving.processor.extensions.top_items.item_sources import MODEL
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.extensions.top_items.section import ALLOW, BLOCK, SEEN, ItemRanking, why_unranked
from freshet_serving.processor.extensions.top_items.successors import score_successors
from freshet_serving.processor.extensions.top_items.vector_table import ReadVectors
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.sessions.request import MAX_TOP_ITEMS

MOST_PAST_ITEMS = 1 << 17
MOST_EVENTS = 16
SHOWN = 200

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class ReadState(NamedTuple):
    """The state that an item is explained in: descriptors of tables, int64 [T, TABLE_FIELDS], and arrays of each.

    `served` says whether its epoch is the served one, `present` whether the items' table has the item.
    """

    tables: Int64s
    arrays: Sequence[Mapping[str, NDArray[Any]]]
    epoch: int
    generation: Generation
    served: bool
    present: bool


class UserRequest(NamedTuple):
    """A request for the best items of one of its users: inputs as they were sent, and as they are bound."""

    sent: Mapping[str, Column]
    aligned: Mapping[str, Column]
    users: int
    user: int
    max_ids: int


class _Rows(NamedTuple):
    """Rows that are ranked, of a table or vectors: int64 [TABLE_FIELDS], their descriptor, and numbers of a row."""

    table: Int64s
    width: int
    epoch: int

    def read(self, keys: Int64s) -> tuple[Float32s, NDArray[np.bool_]]:
        """Return the rows of keys, float32 [n, width], and for which there is one."""
        rows, present = np.zeros((len(keys), self.width), np.float32), np.zeros(len(keys), np.bool_)
        # A copy: a request's ids may be read-only, which the kernel does not take.
        code_scan.read_rows(self.table, self.epoch, self.width, np.array(keys, np.int64), rows, present)
        return rows, present


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedItem:
    """An item of a version that ranks items; `ids` is a column of one."""

    ranking: ItemRanking
    ids: Column
    key: int

    @classmethod
    def of(cls, manifest: Manifest, item: int | str) -> ExplainedItem:
        """Return an item by its id, of which digits stand for a number."""
        ranking = ItemRanking.of(manifest)
        if ranking is None:
            why = why_unranked(manifest)
            raise BadInput(
                f"item: expected a model that ranks items, got {manifest.model!r} version {manifest.version}"
                f"{f' ({why})' if why else ''}; leave item out, and send it as a candidate"
            )
        if ranking.texts:
            ids: Column = Strings.of([str(item)])
        else:
            try:
                number = int(item)
            except ValueError:
                raise BadInput(f"item: expected a whole number, got {str(item)[:64]!r}") from None
            if not -(2**63) <= number < 2**64:
                raise BadInput(f"item: expected a number of 64 bits, got {str(item)[:64]!r}")
            ids = np.array([number % 2**64], np.uint64).view(np.int64)
        return cls(ranking, ids, int(keys_of_ids(ranking, ids)[0]))

    @property
    def read_as(self) -> Manifest:
        """The manifest that a request for the best items is read by."""
        return self.ranking.manifest

    @property
    def tables(self) -> dict[str, str]:
        """Names of the tables with the item's row and with its record."""
        ranking = self.ranking
        named = {"row": ranking.manifest.tables[ranking.table].name}
        return named if ranking.filtered is None else {**named, "record": ranking.filtered.entity.table}

    def candidate(self, inputs: Mapping[str, Column]) -> dict[str, Column]:
        """Return a request's inputs with the item as the only candidate."""
        if (name := AskedSource.of(self.ranking, inputs).name) != MODEL:
            raise BadInput(f"source: expected 'model', which is what is explained, got {name!r}")
        user_inputs = {name: column for name, column in inputs.items() if name not in self.ranking.options}
        return {**user_inputs, self.ranking.item: self.ids}

    def explained(
        self, request: Mapping[str, Any], state: Sequence[Any], outputs: Mapping[str, Float32s]
    ) -> dict[str, Any]:
        """Return the item's place and what its score is made of, JSON-able; docs/extensions/explaining.md.

        Request and state are the fields of a UserRequest and a ReadState, whose version's lock is held; outputs are
        those of the user and the item as a candidate in this state, float32 [columns] by name.
        """
        return self._explained(UserRequest(**request), ReadState(*state), outputs)

    def _explained(self, request: UserRequest, state: ReadState, outputs: Mapping[str, Float32s]) -> dict[str, Any]:
        ranking, tower = self.ranking, self.ranking.tower
        history = histories_of(ranking, request.aligned, request.users)
        chosen = chosen_items(ranking, request.sent, history, request.max_ids)
        user = outputs[ranking.output][None]
        if not np.isfinite(user).all():
            raise FreshetError(f"{ranking.output}: the model computed numbers that are not finite")
        vectors = None
        rows = _Rows(state.tables[ranking.table], ranking.manifest.tables[ranking.table].dim, state.epoch)
        if tower is not None and state.served:
            vectors = ReadVectors.of(tower, state.generation.version, state.arrays[ranking.table])
            rows = _Rows(vectors.table, tower.columns, state.epoch)
        explained: dict[str, Any] = {"place": None, "why_not": self._left_out(request, history, chosen, state)}
        if tower is not None and not state.served:
            row, present = outputs[tower.vectors], True
            explained["note"] = "vectors are kept for the served generation alone: the place is not known"
        else:
            (row,), (present,) = rows.read(np.array([self.key], np.int64))
            if not present:
                explained["why_not"].insert(0, _absence(tower is None, state.present))
        if vectors is not None and vectors.generation is not None:
            explained["item_generation"] = str(vectors.generation)
        if not present:
            return explained
        successors = self._successors(rows, history[request.user], outputs)
        explained |= self._parts(row, user[0], successors, vectors, outputs)
        if "note" not in explained:
            explained["nearest"] = self._nearest(rows, row, request)
            if not explained["why_not"]:
                explained |= self._place(request, chosen, state, rows, user, successors, vectors)
        return explained

    def _left_out(
        self, request: UserRequest, history: Sequence[Int64s], chosen: ChosenItems, state: ReadState
    ) -> list[str]:
        """Return what leaves the item out, though it may have a row."""
        ranking, user, why = self.ranking, request.user, list[str]()
        nobody = [np.empty(0, np.int64)] * request.users
        for name in (ranking.item, ALLOW, BLOCK, SEEN):
            if name not in request.sent or (name != ranking.item and name not in ranking.options):
                continue
            alone = chosen_items(ranking, {name: request.sent[name]}, nobody, request.max_ids)
            if alone.allowed is not None and self.key not in alone.allowed[user]:
                why.append(f"{name}: it is not among the items that the request allows")
            if self.key in alone.excluded[user]:
                why.append(f"{name}: the request leaves it out")
        if ranking.item not in request.sent and self.key in history[user]:
            why.append("history: it is one of the user's own items")
        if chosen.filter is not None:
            why += self._unmatched(chosen.text, chosen.filter.source, state)
        return why

    def _unmatched(self, text: bytes, source: FilteredEntity, state: ReadState) -> list[str]:
        keys, table = np.array([self.key], np.int64), state.tables[source.table]
        records, (present,) = source.read(table, state.epoch, keys)
        if not present and self.ranking.texts:
            return ["no record: an item whose id is a string needs one to be named"]
        clauses = json.loads(text) if text else {}
        values = source.unpack(records, list(clauses)) if present and clauses else {}
        why = []
        for name, expected in clauses.items():
            clause = ItemFilter(json.dumps({name: expected}).encode(), source)
            if not clause.of_keys(state.tables, state.epoch, keys)[0]:
                got = text_of(values[name], 0) if present else "no record"
                why.append(f"filter.{name}: expected {json.dumps(expected)[:SHOWN]}, got {got[:SHOWN]}")
        return why

    def _successors(self, rows: _Rows, history: Int64s, outputs: Mapping[str, Float32s]) -> RankedRows | None:
        ranking = self.ranking
        if ranking.successors is None:
            return None
        newest, nothing = history[-ranking.length :], np.empty(0, np.int64)
        vector, mixture = outputs[ranking.output], outputs[ranking.mixture]
        return score_successors(rows.table, rows.epoch, ranking.successors, newest, nothing, vector, mixture)

    def _parts(
        self,
        row: Float32s,
        user: Float32s,
        successors: RankedRows | None,
        vectors: ReadVectors | None,
        outputs: Mapping[str, Float32s],
    ) -> dict[str, Any]:
        ranking, columns = self.ranking, self.ranking.columns
        product = np.float32(row[:columns] @ user[:columns])
        if ranking.tower is not None:
            if vectors is None:
                # An earlier generation: what its own graph made of the product.
                return {"score": outputs["score"][0] if "score" in outputs else product, "parts": {"product": product}}
            scale, bias = vectors.numbers
            (score,) = ranking.tower.score.score(np.array([product]), vectors.numbers)
            return {"score": score, "parts": {"product": product, "scale": scale, "bias": bias}}
        layout = ranking.successors
        if layout is None or successors is None:
            return {"score": product, "parts": {"product": product}}
        score = next((each for key, each in zip(*successors) if key == self.key), product)
        learned = np.float32(row[: layout.dim] @ user[: layout.dim])
        parts = {"learned": learned, "popularity": product - learned, "successors": score - product}
        return {"score": score, "parts": parts}

    def _nearest(self, rows: _Rows, row: Float32s, request: UserRequest) -> list[dict[str, Any]]:
        layout = self.ranking.successors
        dim = self.ranking.columns if layout is None else layout.dim
        events = []
        for name in self.ranking.history:
            column = request.aligned[name]
            if not isinstance(column, Ragged):
                continue
            at = request.user if len(column) > 1 else 0
            first, last = (int(end) for end in column.row_splits[at : at + 2])
            of_events, present = rows.read(keys_of_ids(self.ranking, column.values)[first:last])
            event_vectors, item_vector = of_events[:, :dim], row[:dim]
            products = event_vectors @ item_vector
            lengths = np.maximum(np.linalg.norm(event_vectors, axis=1) * np.linalg.norm(item_vector), np.float32(1e-30))
            for place in np.flatnonzero(present).tolist():
                event = {"input": name, "place": place, "id": text_of(column.values, first + place)}
                events.append({**event, "product": products[place], "cosine": products[place] / lengths[place]})
        events.sort(key=lambda event: (-event["cosine"], -event["place"]))
        return events[:MOST_EVENTS]

    def _place(
        self,
        request: UserRequest,
        chosen: ChosenItems,
        state: ReadState,
        rows: _Rows,
        user: Float32s,
        successors: RankedRows | None,
        vectors: ReadVectors | None,
    ) -> dict[str, Any]:
        ranking, arrays = self.ranking, state.arrays[self.ranking.table]
        excluded, counts = chosen.excluded[request.user], "code_count" in arrays
        if chosen.allowed is None and (items := int(arrays["code_count"][0]) if counts else 0) > request.max_ids:
            raise TooLarge(f"max_ids: expected at most {request.max_ids} items to rank per request, got {items}")
        allowed = None if chosen.allowed is None else chosen.allowed[request.user]
        if allowed is None and not state.served:
            if items > MOST_PAST_ITEMS:
                return {"note": f"the place is not known: expected at most {MOST_PAST_ITEMS} items of an earlier state"}
            allowed = keys_at(arrays, np.arange(items))

        more = []
        if successors is not None:
            counting = ~np.isin(successors.keys, excluded)
            more = [RankedRows(successors.keys[counting], successors.scores[counting])]
        (ranked,) = best_items(
            RankedTable(rows.table, arrays, state.tables, rows.epoch, ranking.columns),
            user if vectors is None else vectors.queries(user),
            chosen.filter,
            None if allowed is None else [np.unique(allowed)],
            [excluded],
            more,
            MAX_TOP_ITEMS,
            lambda rows_read: True,
        )
        places = np.flatnonzero(ranked.keys == self.key)
        if len(places):
            return {"place": int(places[0]) + 1, "ranked": len(ranked.keys)}
        return {"why_not": [f"score: it is not among the best {len(ranked.keys)}"], "ranked": len(ranked.keys)}


def _absence(by_rows: bool, present: bool) -> str:
    if by_rows:
        return "it has no row"
    return "no vector yet: it came after the generation of the vectors" if present else "it is no item"


def text_of(column: Any, row: int) -> str:
    """Return one value of a column for people."""
    if isinstance(column, Ragged):
        first, last = (int(end) for end in column.row_splits[row : row + 2])
        return "[" + ", ".join(text_of(column.values, n) for n in range(first, last)) + "]"
    if isinstance(column, Strings):
        text: bytes = column.tolist()[row]
        return text.decode(errors="replace")
    value = column[row]
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
