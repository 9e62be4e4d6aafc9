"""The items of a version with two towers, and what their vectors are computed of.

The manifest's notes name the vectors (section.NOTE), which servers that predate it do not read:

    "item_ranking": {"output": "user_vector", "vectors": "item_vector", "weights": ["item_0/kernel", ...],
                     "score": {"link": "sigmoid", "scale": "score_out/kernel", "bias": "score_out/bias"}}

`output` is the user's vector and `vectors` an item's; the order of items is that of their product. `weights` are the
dense tensors that items' vectors depend on; without it, all that the graph reads. `score` says what the model's score
makes of the product p: link(scale * p + bias); without it, p is the score.

An item is a key of the catalogue: the records of an entity whose key and columns are all that the item's features read,
or, without one, the rows that the items' only input looks up. Where items' features read anything else of a request,
their vectors cannot be computed beforehand, and the version ranks no items.

Which items a changed row belongs to follows from how the row is looked up:

    direct   by the item's own key
    lookups  by a value of the item's record (item_readers)
    spread   otherwise, as by a bucket of the key: it may belong to any item
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package import EntityEntry, Feature, Manifest, names_keys, record_layout

IDENTITY, SIGMOID = "identity", "sigmoid"
LINKS = (IDENTITY, SIGMOID)


class RecordLookup(NamedTuple):
    """A table that items' features look up by values of records: a list, or a fixed number.

    `offset` is the first word of the values, or of their number for a list, `most` the most values.
    """

    table: str
    offset: int
    most: int
    ragged: bool


class ScoreForm(NamedTuple):
    """The score that a product makes: a link, and dense tensors with its factor ("" for 1) and bias ("" for 0)."""

    link: str = IDENTITY
    scale: str = ""
    bias: str = ""

    def numbers(self, dense: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the factor and what is added, float32 [2]."""
        scale = dense[self.scale].reshape(-1)[0] if self.scale else 1.0
        bias = dense[self.bias].reshape(-1)[0] if self.bias else 0.0
        return np.array([scale, bias], np.float32)

    def score(self, products: NDArray[np.float32], numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of products, float32 [n], with the result of numbers()."""
        scores: NDArray[np.float32] = numbers[0] * products + numbers[1]
        if self.link == SIGMOID:
            with np.errstate(over="ignore"):
                scores = (1 / (1 + np.exp(-scores))).astype(np.float32)
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class ItemTower:
    """The items of a version and what their vectors are computed of.

    Attributes:
        key: The input with an item's key; strings are known by their hashes.
        inputs: All inputs of items: a request for the best items leaves them out.
        table: Name of the catalogue, whose keys are the items.
        entity: The entity whose records it has; None for a table of rows.
        vectors: The output with items' vectors.
        columns: Numbers of a vector.
        direct: Tables, other than the catalogue, that are looked up by the item's own key.
        lookups: Those that are looked up by values of records.
        spread: Those whose rows may belong to any item.
        weights: Dense tensors that vectors depend on; () for all that the graph reads.
        score: What the score makes of a product.
    """

    key: str
    inputs: frozenset[str]
    table: str
    entity: EntityEntry | None
    vectors: str
    columns: int
    direct: frozenset[str]
    lookups: tuple[RecordLookup, ...]
    spread: frozenset[str]
    weights: tuple[str, ...]
    score: ScoreForm

    @property
    def tables(self) -> frozenset[str]:
        """Names of all tables that vectors depend on."""
        return self.direct | self.spread | {lookup.table for lookup in self.lookups} | {self.table}

    @classmethod
    def of(cls, manifest: Manifest, noted: Mapping[str, Any]) -> ItemTower:
        """Return the items of a version by its notes; raise BadInput with the reason if it cannot rank them."""
        output = next((o for o in manifest.outputs if o.name == noted.get("output")), None)
        vectors = next((o for o in manifest.outputs if o.name == noted.get("vectors")), None)
        if output is None or vectors is None or output.columns != vectors.columns:
            raise BadInput("its notes name no two vectors of one length")
        if manifest.stage is not None:
            raise BadInput("items' vectors cannot be computed beforehand of a model with a stage")
        features = [f for f in manifest.features if f.side == "item"]
        if not features:
            raise BadInput("it has no features of side 'item'")
        entity, key = _catalogue(manifest, features)
        spec = manifest.input(key)
        if spec.dtype == "float32" or spec.columns or spec.ragged:
            raise BadInput(f"input {key!r}: expected one id for each item, got another type")
        inputs = frozenset({key, *(entity.inputs if entity is not None else ())})
        for feature in (f for f in manifest.features if f.side != "item"):
            if both := inputs & manifest.origins({feature.input}):
                names = f"feature {feature.name!r} of side {feature.side!r} reads {min(both)!r}"
                raise BadInput(f"{names} of items, so users' vectors are different for each: set its side to 'item'")
        item_features = [f for f in features if f.input == key and f.kind in ("id", "string") and f.column == -1]
        if entity is None and not item_features:
            raise BadInput(f"no feature looks up {key!r} itself, and no entity has it as its key")
        table = entity.table if entity is not None else item_features[0].table
        if spec.dtype == "string":
            _check_hashes(manifest, entity, key, item_features)
        fields = record_layout(manifest, entity).sources if entity is not None else []
        lookups: dict[RecordLookup, None] = {}
        spread: set[str] = set()
        for feature in features:
            if not feature.table or feature in item_features:
                continue
            record_fields = [f for f in fields if f.source == feature.input and not f.floats]
            lookups |= {RecordLookup(feature.table, f.offset, f.count, f.ragged): None for f in record_fields}
            if not record_fields:
                spread.add(feature.table)
        return cls(
            key=key,
            inputs=inputs,
            table=table,
            entity=entity,
            vectors=vectors.name,
            columns=vectors.columns,
            direct=frozenset(f.table for f in item_features) - {table},
            lookups=tuple(lookups),
            spread=frozenset(spread),
            weights=_weights(manifest, noted.get("weights", ())),
            score=_score(manifest, noted.get("score", {})),
        )


def _catalogue(manifest: Manifest, features: Collection[Feature]) -> tuple[EntityEntry | None, str]:
    """Return the entity that has all inputs of items, or None, and the input with their key."""
    names = manifest.origins({f.input for f in features})
    for entity in manifest.entities:
        if names <= {entity.key, *entity.inputs}:
            return entity, entity.key
    if len(names) == 1:
        return None, first_of(names)
    direct = {f.input for f in features if f.kind in ("id", "string") and f.column == -1 and f.input in names}
    others = ", ".join(sorted(names - direct)) if len(direct) == 1 else ", ".join(sorted(names))
    raise BadInput(f"items' vectors need {others[:200]}, which only requests have: make them columns of an entity")


def _check_hashes(manifest: Manifest, entity: EntityEntry | None, key: str, item_features: Collection[Feature]) -> None:
    """Raise BadInput unless items' strings are known, and one hash of each finds all of its rows."""
    if entity is None or not names_keys(entity):
        raise BadInput(f"input {key!r}: expected items that are numbers, or the key of an entity with filters")
    seeds = {manifest.table(table).hash_seed for table in (entity.table, *(f.table for f in item_features))}
    if len(seeds) > 1 or any(key in t.inputs for t in manifest.transforms):
        raise BadInput(f"input {key!r}: strings of items are hashed in several ways")


def _weights(manifest: Manifest, noted: Any) -> tuple[str, ...]:
    names = tuple(noted) if isinstance(noted, list) else ()
    return names if all(isinstance(name, str) and name in manifest.dense for name in names) else ()


def _score(manifest: Manifest, noted: Any) -> ScoreForm:
    if not isinstance(noted, dict) or not noted:
        return ScoreForm()
    link, scale, bias = (noted.get(name, plain) for name, plain in zip(ScoreForm._fields, ScoreForm()))
    single = [not name or (isinstance(name, str) and _is_one(manifest.dense.get(name))) for name in (scale, bias)]
    if link not in LINKS or not all(single):
        raise BadInput("its notes describe a score that this release does not know")
    return ScoreForm(link, scale, bias)


def _is_one(shape: list[int] | None) -> bool:
    return shape is not None and all(size == 1 for size in shape)
