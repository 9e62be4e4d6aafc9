"""Map a Keras model to the package that it was imported as: variables to tables and dense weights, rows to keys.

Names follow from variables' paths (docs/how-to/import.md): `user_rows/embeddings` is table `user_rows.embeddings`, and
`user_rows.embeddings-2` if other keys look it up, too. Keras numbers unnamed layers through the whole process
(`dense_3`), also those inside layers (keras-rs' FeatureCross). So if only these numbers differ from the package's,
variables of one name and shape are matched in the order of their numbers. Names in a SavedModel lack the layers that a
layer made when it was first called. Keys are row numbers, or the vocabulary of the lookup layer before the embedding;
the keys that the package was published with confirm the choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.publishing.key_ids import hashed, noted_constants, takes_integers, takes_strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest, TableEntry, weight_rows
from freshet_serving.processor.repository import places_of

Int64s = NDArray[np.int64]
Shape = tuple[int, ...]
# Layers that pass ids unchanged from a lookup to an embedding.
PASSING = ("Reshape", "Flatten", "ExpandDims", "Squeeze", "Identity", "Dropout", "Cast")
LOOKUPS = ("StringLookup", "IntegerLookup")


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Keys int64 [n] of a matrix' rows int64 [n], and the row of all other keys if deltas lack it; -1 for none."""

    keys: Int64s
    rows: Int64s
    unknown: int = -1


@dataclass(frozen=True, slots=True)
class VariableMapping:
    """A model's tables and dense weights in the package, and by path variables that it lacks and that must not move."""

    tables: list[tuple[TableEntry, RowKeys, Any]]
    dense: dict[str, Any]
    left_out: dict[str, Any]


def map_variables(
    model: Any, manifest: Manifest, given: Mapping[str, Any], published_keys: Callable[[str], Int64s]
) -> VariableMapping:
    """Map a model's variables to a package's tables and dense weights.

    `given` has, by layer or table, the key of each row; published_keys() returns those that a table was published with.
    """
    tables: list[tuple[TableEntry, RowKeys, Any]] = []
    dense: dict[str, Any] = {}
    left_out: dict[str, Any] = {}
    trained = {id(v) for v in model.trainable_variables}
    layers = {id(v): layer for layer in every_layer(model) for v in getattr(layer, "variables", ()) if _owns(layer, v)}
    used: set[str] = set()
    tables_of, weights_of, staged_of, constants = _names(model, manifest)
    for variable in model.variables:
        shape = [int(n) for n in variable.shape]
        base, name = tables_of.get(id(variable)), weights_of.get(id(variable))
        entries = [t for t in manifest.tables if _base(t.name) == base and t.dim == shape[-1]] if base else []
        if staged := staged_of.get(id(variable)):
            entry = manifest.table(staged)
            numbers = np.arange(entry.rows)
            tables.append((entry, RowKeys(numbers, numbers), variable))
        if entries:
            for entry in entries:
                used |= {entry.name, getattr(layers.get(id(variable)), "name", "")}
                keys = _row_keys(manifest, entry, shape[0], layers.get(id(variable)), given, published_keys)
                tables.append((entry, keys, variable))
                if id(variable) in trained:
                    manifest.check_reachable(entry.name)
        if name is not None:
            dense[name] = variable
        if entries or staged or name is not None:
            continue
        if id(variable) in trained and id(variable) in constants:
            raise BadInput(
                f"variable {variable.path!r} is trained, and inference computes with it, but the package has it as a "
                "constant of its stage, which no delta changes: import the trained model as a new version, or freeze "
                "it (trainable = False)"
            )
        if id(variable) in trained and sum(other.path == variable.path for other in model.variables) > 1:
            raise BadInput(
                f"variable {variable.path!r}: expected a path of its own, which several variables of the model have: "
                "give layers of nested models names of their own, and import the model again"
            )
        if id(variable) in trained:
            names = ", ".join([*(t.name for t in manifest.tables), *manifest.dense])[:300] or "none"
            raise BadInput(
                f"variable {variable.path!r} of shape {shape} is trained but is not among the package's tables and "
                f"weights: {names}"
            )
        if "float" in str(variable.dtype):
            left_out[variable.path] = variable
    for name in given.keys() - used:
        raise BadInput(f"keys: expected an embedding layer or a table, got {name[:64]!r}")
    return VariableMapping(tables, dense, left_out)


def every_layer(model: Any) -> Iterator[Any]:
    """Yield a model's layers, including those of nested models."""
    flatten = getattr(model, "_flatten_layers", None)
    yield from flatten() if flatten is not None else model.layers


def _owns(layer: Any, variable: Any) -> bool:
    return any(variable is owned for owned in (*layer._trainable_variables, *layer._non_trainable_variables))


def _names(model: Any, manifest: Manifest) -> tuple[dict[int, str], dict[int, str], dict[int, str], dict[int, str]]:
    """Return each variable's table (without the number of a copy), dense weight, stage weight and constant, by id()."""
    variables: list[tuple[Any, Shape]] = [(v, tuple(int(n) for n in v.shape)) for v in model.variables]
    numbered = {_automatic(type(layer).__name__) for layer in every_layer(model)}
    matrices: list[tuple[Any, Shape]] = [(v, (shape[1],)) for v, shape in variables if len(shape) == 2]
    flat: list[tuple[Any, Shape]] = [(v, weight_rows(shape)) for v, shape in variables]
    any_shape: list[tuple[Any, Shape]] = [(v, ()) for v, _ in variables]
    staged = [t for t in manifest.tables if t.name in manifest.stage_weights]
    others = [t for t in manifest.tables if t.name not in manifest.stage_weights]
    tables: dict[tuple[str, Shape], str] = {(_base(t.name), (t.dim,)): _base(t.name) for t in others}
    weights: dict[tuple[str, Shape], str] = {
        (_dotted(name), tuple(shape)): name for name, shape in manifest.dense.items()
    }
    whole: dict[tuple[str, Shape], str] = {(t.name, (t.rows, t.dim)): t.name for t in staged}
    constants: dict[tuple[str, Shape], str] = {(_dotted(name), ()): name for name in noted_constants(manifest)}
    return (
        _aligned(tables, matrices, numbered),
        _aligned(weights, variables, numbered),
        _aligned(whole, flat, numbered),
        _aligned(constants, any_shape, numbered),
    )


def _aligned(
    names: Mapping[tuple[str, Shape], str], variables: Iterable[tuple[Any, Shape]], numbered: Collection[str]
) -> dict[int, str]:
    """Return the package's name of each variable, by id(): closer matches first, names of several variables ignored."""
    aligned: dict[int, str] = {}
    left, open_names = list(variables), dict(names)
    for spelled, counted in (
        (_whole_path, numbered),
        (_without_outer, numbered),
        # TensorFlow numbers variables of one name.
        (_without_inner, {*numbered, *(variable.path.rpartition("/")[2] for variable, _ in left)}),
    ):
        fitting = _fitting_names(open_names, left, counted, spelled)
        aligned |= {which: open_names[name] for which, name in fitting.items()}
        taken = set(fitting.values())
        open_names = {name: package_name for name, package_name in open_names.items() if name not in taken}
        left = [(variable, shape) for variable, shape in left if id(variable) not in fitting]
    return aligned


def _fitting_names(
    names: Collection[tuple[str, Shape]],
    variables: Iterable[tuple[Any, Shape]],
    numbered: Collection[str],
    spelled: Callable[[str], Iterable[str]],
) -> dict[int, tuple[str, Shape]]:
    """Return which name each variable has, by the variable's id(); `spelled` returns possible names of a path."""
    groups: dict[tuple[str, Shape], list[str]] = {}
    for name, shape in names:
        groups.setdefault((_unnumbered(name, numbered), shape), []).append(name)
    members: dict[tuple[str, Shape], list[tuple[str, Any]]] = {}
    for variable, shape in variables:
        for path in map(_dotted, spelled(variable.path)):
            group = _unnumbered(path, numbered), shape
            if group in groups:
                members.setdefault(group, []).append((path, variable))
                break
    fitting: dict[int, tuple[str, Shape]] = {}
    for group, candidates in members.items():
        theirs, counts = groups[group], Counter(path for path, _ in candidates)
        renumbered = len(counts) == len(candidates) == len(theirs)
        if renumbered and counts.keys() != set(theirs):
            pairs = zip(sorted(theirs, key=_order), sorted(candidates, key=lambda candidate: _order(candidate[0])))
            fitting |= {id(variable): (name, group[1]) for name, (_, variable) in pairs}
        else:
            fitting |= {id(v): (path, group[1]) for path, v in candidates if path in theirs and counts[path] == 1}
    return fitting


def _dotted(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", path.replace("/", "."))


def _base(table: str) -> str:
    """Return a table's name without the number of a copy under other keys."""
    return re.sub(r"-\d+$", "", table)


def _automatic(layer_class: str) -> str:
    """Return Keras' name for the first layer of a class."""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", layer_class)))
    return words.lower()


def _unnumbered(name: str, numbered: Collection[str]) -> str:
    """Return a dotted name without the numbers that Keras appended to its words."""
    words = [(word, re.sub(r"_\d+$", "", word)) for word in name.split(".")]
    return ".".join(plain if plain in numbered else word for word, plain in words)


def _order(name: str) -> list[str | int]:
    """Return a key that sorts names by their numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _whole_path(path: str) -> Iterable[str]:
    return [path]


def _without_outer(path: str) -> Iterable[str]:
    """Return the path without outer models, which exports omit: at least two words."""
    words = path.split("/")
    return ["/".join(words[at:]) for at in range(1, max(1, len(words) - 1))]


def _without_inner(path: str) -> Iterable[str]:
    """Return the path without layers made in a call, which TensorFlow's names lack."""
    words = path.split("/")
    return [f"{word}/{words[-1]}" for word in words[:-2]]


def _row_keys(
    manifest: Manifest,
    entry: TableEntry,
    rows: int,
    layer: Any,
    listed_keys: Mapping[str, Any],
    published_keys: Callable[[str], Int64s],
) -> RowKeys:
    called = entry.name if entry.name in listed_keys else getattr(layer, "name", "")
    if called in listed_keys:
        return _given_keys(manifest, entry, rows, listed_keys[called])
    computed = {source.name for source in manifest.sources} - {spec.name for spec in manifest.inputs}
    staged = any(f.table == entry.name and f.input in computed for f in manifest.features)
    candidates = [] if staged and takes_integers(manifest, entry.name) else list(_lookups(layer))
    published = np.sort(published_keys(entry.name))
    for lookup in candidates:
        vocabulary = _vocabulary(entry, lookup, takes_strings(manifest, entry.name))
        if vocabulary is not None and (fitting := _fitting(vocabulary, published, rows)) is not None:
            return _with_unknown(entry, fitting)
    if takes_integers(manifest, entry.name):
        plain = _fitting(RowKeys(np.arange(rows), np.arange(rows)), published, rows)
        if plain is not None:
            return plain
    layer_name = getattr(layer, "name", entry.name)
    raise BadInput(
        f"table {entry.name!r}: cannot determine the keys of the rows of layer {layer_name!r}: expected "
        f"keys={{{layer_name!r}: [the key of each row, None for no key]}}"
    )


def _given_keys(manifest: Manifest, entry: TableEntry, rows: int, row_keys: Any) -> RowKeys:
    listed = row_keys.tolist() if isinstance(row_keys, np.ndarray) else list(row_keys)
    if len(listed) > rows:
        raise BadInput(f"keys of {entry.name!r}: expected at most {rows} (one for each row), got {len(listed)}")
    at = np.array([i for i, key in enumerate(listed) if key is not None], np.int64)
    chosen = [key for key in listed if key is not None]
    words = all(isinstance(key, (str, bytes)) for key in chosen)
    if not (takes_strings if words else takes_integers)(manifest, entry.name):
        raise BadInput(
            f"keys of {entry.name!r}: expected {'integers' if words else 'strings'}, the type of its features"
        )
    return RowKeys(hashed(chosen, entry.hash_seed) if words else np.array(chosen, np.int64), at)


def _lookups(layer: Any) -> Iterator[Any]:
    """Yield the lookup layers directly before a layer, wherever it is called."""
    for node in getattr(layer, "_inbound_nodes", ()):
        for tensor in node.arguments.keras_tensors:
            at = tensor
            while at is not None:
                operation = at._keras_history.operation
                if type(operation).__name__ in LOOKUPS:
                    yield operation
                before = operation._inbound_nodes[at._keras_history.node_index].arguments.keras_tensors
                at = before[0] if type(operation).__name__ in PASSING and len(before) == 1 else None


def _vocabulary(entry: TableEntry, lookup: Any, strings: bool) -> RowKeys | None:
    """Return the keys of a lookup layer with at most one out-of-vocabulary index, else None."""
    if getattr(lookup, "num_oov_indices", 1) > 1 or strings != (type(lookup).__name__ == "StringLookup"):
        return None
    words = list(lookup.get_vocabulary(include_special_tokens=True))
    masks = lookup.mask_token is not None
    unknown = int(masks) if lookup.num_oov_indices else -1
    at = np.array([i for i in range(len(words)) if i != unknown], np.int64)
    chosen = [words[i] for i in at]
    if strings:
        return RowKeys(
            hashed([str(word) if not isinstance(word, bytes) else word for word in chosen], entry.hash_seed),
            at,
            unknown,
        )
    return RowKeys(np.array(chosen, np.int64), at, unknown)


def _fitting(candidates: RowKeys, published: Int64s, rows: int) -> RowKeys | None:
    """Return the keys that the package was published with, if all are among the candidates."""
    order = np.argsort(candidates.keys)
    at, present = places_of(candidates.keys[order], published)
    if not present.all() or (len(at) and int(candidates.rows[order[at]].max()) >= rows):
        return None
    return RowKeys(published, candidates.rows[order[at]], candidates.unknown)


def _with_unknown(entry: TableEntry, rows: RowKeys) -> RowKeys:
    """Add the key of the row of all other keys, if there is one that deltas have."""
    if rows.unknown < 0 or entry.unknown_key is None:
        return rows
    return RowKeys(np.append(rows.keys, entry.unknown_key), np.append(rows.rows, rows.unknown))
