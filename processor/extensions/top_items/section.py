"""Versions whose score is a product, and which can therefore rank all items of a table for a user.

The manifest's notes name it under NOTE, which servers that predate it do not read:

    "item_ranking": {"output": "user_vector", "feature": "item_id"}

The score of a request's row is the product of its `output` with the row that its `feature` looks up, an id as the
request sends it. Items of the user's history are the values of the sequences' columns that read the same table. Items
whose ids are strings are ranked if the version's entity of items has the texts of its keys (names_keys).

An entry "successors": {"output": "mixture", "dim": 50, "count": 16} says that rows have 50 learned numbers and 16
successors (processor.package.item_rows), whose scores are products and what counts add to them. An entry "vectors" in
place of "feature" names the output with items' vectors (item_tower). An entry "sources" says which numbers items have
that rank them for everybody (item_sources).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity
from freshet_serving.processor.extensions.top_items.item_sources import MODEL, NEW, POPULAR, ItemSource, sources_of
from freshet_serving.processor.extensions.top_items.item_tower import SIGMOID, ItemTower
from freshet_serving.processor.package import (
    RANKED_OUTPUTS,
    RECORD,
    UNREAD,
    Input,
    InputFiller,
    Manifest,
    TableEntry,
    names_keys,
)
from freshet_serving.processor.package.item_rows import MOST_SUCCESSORS, ItemRows

NOTE = "item_ranking"
FILTER, ALLOW, BLOCK, SEEN, LIKE, SOURCE = OPTIONS = ("filter", "allow", "block", "seen", "like", "source")
"""Inputs of a request for the best items that say which items count, and what ranks them."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemRanking:
    """The way in which a version ranks the items of a table.

    Attributes:
        item: Input of a request's candidates, int64 or string; a request for the best items of all leaves it out.
        output: The output with the users' vectors.
        table: Number of the items' table.
        history: Inputs with the items of the user's history.
        manifest: How a request for the best items is read and answered: all of its inputs may be left out, those of the
            user only where `source` says so, and it has RANKED_OUTPUTS.
        successors: The items' rows, if they have successors.
        mixture: The output that weighs these; "" without successors.
        length: Most events of a history that the network reads.
        filtered: The entity whose columns filters read; None if there is none.
        options: Those of OPTIONS that are no inputs of the model.
        tower: The items of a version with two towers, whose vectors are ranked in place of the table's rows.
        sources: What ranks items for everybody, by name.
    """

    item: str
    output: str
    table: int
    history: tuple[str, ...]
    manifest: Manifest
    successors: ItemRows | None = None
    mixture: str = ""
    length: int = 0
    filtered: FilteredEntity | None = None
    options: frozenset[str] = frozenset()
    tower: ItemTower | None = None
    sources: Mapping[str, ItemSource] = field(default_factory=dict)

    @property
    def hash_seed(self) -> int:
        return self.manifest.tables[self.table].hash_seed

    @property
    def texts(self) -> bool:
        """True if ids are strings."""
        return self.manifest.input(self.item).dtype == "string"

    @property
    def columns(self) -> int:
        if self.tower is not None:
            return self.tower.columns
        return self.manifest.tables[self.table].dim if self.successors is None else self.successors.dense

    @classmethod
    def of(cls, manifest: Manifest) -> Self | None:
        """Return how a version ranks items; None if its notes do not say so, or say what is not there."""
        noted = manifest.notes.get(NOTE)
        if not isinstance(noted, dict):
            return None
        ranking = None
        if "vectors" in noted:
            with suppress(BadInput):
                ranking = cls.by_vectors(manifest, noted)
        else:
            ranking = cls.by_rows(manifest, noted)
        if ranking is None:
            return None
        own_columns = ranking.columns if ranking.tower is None else 0
        return replace(ranking, sources=sources_of(manifest, noted.get("sources"), ranking.table, own_columns))

    @classmethod
    def by_rows(cls, manifest: Manifest, noted: Mapping[str, Any]) -> Self | None:
        """Return how a version ranks the rows of a table; None if its notes say what is not there."""
        kinds = ("id", "string")
        feature = next((f for f in manifest.features if f.name == noted.get("feature") and f.kind in kinds), None)
        output = next((o for o in manifest.outputs if o.name == noted.get("output")), None)
        if feature is None or output is None or feature.column != -1:
            return None
        # A request's own ids: what transforms make of them could not be sent as candidates.
        sent = {i.name: i for i in manifest.inputs if i.dtype != "float32" and not i.columns and not i.ragged}
        number = first_of(n for n, t in enumerate(manifest.tables) if t.name == feature.table)
        table = manifest.tables[number]
        if feature.input not in sent or table.dtype == RECORD or output.columns != table.dim:
            return None
        history = tuple(c.input for s in manifest.sequences for c in s.columns if c.table == table.name)
        if not set(history) <= {i.name for i in manifest.inputs}:
            return None
        item = sent[feature.input]
        filtered = FilteredEntity.of(manifest, item.name, table.hash_seed)
        named = filtered is not None and names_keys(filtered.entity)
        if feature.kind != ("id" if item.dtype == "int64" else "string") or (item.dtype == "string" and not named):
            return None
        read, names = _read_as(manifest, item)
        if "successors" not in noted:
            return cls(item.name, output.name, number, history, read, filtered=filtered, options=names)
        rows, mixture = _successors(noted["successors"], manifest, table)
        if rows is None or len(history) != 1:
            return None
        (length,) = (s.max_length for s in manifest.sequences for c in s.columns if c.input == history[0])
        return cls(item.name, output.name, number, history, read, rows, mixture, length, filtered, names)

    @classmethod
    def by_vectors(cls, manifest: Manifest, noted: Mapping[str, Any]) -> Self:
        """Return how a version with two towers ranks items; raise BadInput with the reason if it cannot."""
        tower = ItemTower.of(manifest, noted)
        number = first_of(n for n, t in enumerate(manifest.tables) if t.name == tower.table)
        item_tables = {tower.table, *tower.direct}
        history = tuple(c.input for s in manifest.sequences for c in s.columns if c.table in item_tables)
        filtered = FilteredEntity.of(manifest, tower.key, manifest.tables[number].hash_seed)
        read, names = _read_as(manifest, manifest.input(tower.key), tower.inputs - {tower.key})
        return cls(tower.key, noted["output"], number, history, read, filtered=filtered, options=names, tower=tower)


def _read_as(manifest: Manifest, item: Input, without: Set[str] = frozenset()) -> tuple[Manifest, frozenset[str]]:
    """Return how a request for the best items, without some inputs, is read; and the options that are no inputs."""
    options = [spec for spec in _options(item) if spec.name not in {i.name for i in manifest.inputs}]
    outputs = RANKED_OUTPUTS[item.declared if item.declared == "uint64" else item.dtype]
    inputs = [*(i for i in manifest.inputs if i.name not in without), *options]
    read = replace(manifest, inputs=inputs, outputs=outputs, signatures=[], notes={})
    # What the model needs of the user is asked for where it is computed.
    left_out = dict.fromkeys((spec.name for spec in inputs), InputFiller(UNREAD, "", ()))
    read.fillers.update(left_out | read.fillers | {item.name: InputFiller(UNREAD, "", ())})
    return read, frozenset(spec.name for spec in options)


def _options(item: Input) -> list[Input]:
    lists = [Input(name, item.dtype, ragged=True, declared=item.declared) for name in (ALLOW, BLOCK, SEEN)]
    return [Input(FILTER, "string"), *lists, Input(LIKE, item.dtype, declared=item.declared), Input(SOURCE, "string")]


def _successors(noted: Any, manifest: Manifest, table: TableEntry) -> tuple[ItemRows | None, str]:
    """Return the rows that the entry describes and the output that weighs successors; None if they do not fit."""
    dim, count, name = (noted.get(key) if isinstance(noted, dict) else None for key in ("dim", "count", "output"))
    output = next((o for o in manifest.outputs if o.name == name), None)
    if type(dim) is not int or type(count) is not int or not 0 < count <= MOST_SUCCESSORS or output is None:
        return None, ""
    rows = ItemRows(table.dim, True, count)
    fits = rows.dim == dim > 0 and output.columns == 3 and table.dtype == "float32"
    return (rows, output.name) if fits else (None, "")


def item_ranking_note(output: str, feature: str, successors: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the notes of a version that ranks items; arguments are what the head of this module describes."""
    noted = {"output": output, "feature": feature}
    return {NOTE: noted if successors is None else {**noted, "successors": dict(successors)}}


def vector_ranking_note(
    output: str, vectors: str, weights: Sequence[str] = (), scale: str = "", bias: str = ""
) -> dict[str, Any]:
    """Return the notes of a version with two towers (item_tower).

    Weights are the dense tensors that items' vectors depend on; () if that is not known. Scale and bias are those of a
    line of products whose sigmoid is the score; "" where the product is the score.
    """
    score = {"score": {"link": SIGMOID, "scale": scale, "bias": bias}} if scale else {}
    return {NOTE: {"output": output, "vectors": vectors, "weights": list(weights), **score}}


def source_entry(
    table: str, column: int, scale: float = 1.0, shift: float = 0.0, origin_s: float = 0.0
) -> dict[str, Any]:
    """Return what the notes say of a source; arguments as the attributes of ItemSource, the table by name."""
    return {"table": table, "column": column, "scale": scale, "shift": shift, "origin_s": origin_s}


def with_sources_note(
    notes: Mapping[str, Any], popular: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a version's notes with its sources, source_entry() or None; the same notes if it ranks no items."""
    if NOTE not in notes:
        return dict(notes)
    sources = {name: dict(entry) for name, entry in ((POPULAR, popular), (NEW, new)) if entry is not None}
    return {**notes, NOTE: {**notes[NOTE], "sources": sources}}


def noted_origin(notes: Mapping[str, Any]) -> float | None:
    """Return the Unix seconds that with_sources_note() has noted as the origin of times; None for no times."""
    ranking = notes.get(NOTE)
    sources = ranking.get("sources") if isinstance(ranking, dict) else None
    entry = sources.get(NEW) if isinstance(sources, dict) else None
    return float(entry["origin_s"]) if isinstance(entry, dict) and "origin_s" in entry else None


def why_unranked(manifest: Manifest) -> str:
    """Return why the items of a version with two towers cannot be ranked; "" if they can, or for another version."""
    noted = manifest.notes.get(NOTE)
    if isinstance(noted, dict) and "vectors" in noted:
        try:
            ItemRanking.by_vectors(manifest, noted)
        except BadInput as error:
            return str(error)
    return ""


def describe_ranking(manifest: Manifest) -> str:
    """Return how a version ranks items, for people, or why it ranks none; "" if it has no vectors of items."""
    ranking = ItemRanking.of(manifest)
    if ranking is None and (why := why_unranked(manifest)):
        return f"none: {why}"
    if ranking is None:
        return ""
    by = ", ".join([MODEL, LIKE, *ranking.sources])
    if ranking.tower is not None:
        return f"{ranking.output} by {ranking.tower.vectors} of the items of {ranking.tower.table}; sources {by}"
    table, seen = manifest.tables[ranking.table], "".join(f", without those of {name}" for name in ranking.history)
    source = ranking.filtered
    filters = f"; filters on {', '.join(source.columns)}" if source is not None and source.columns else ""
    rows = f"the rows of {table.name}{seen}; {ranking.columns + 4} bytes a row beside them"
    return f"{ranking.output} by {rows}; sources {by}{filters}"
