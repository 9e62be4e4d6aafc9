"""Number the sources of a model's sparse graph, and write its features as a plan for kernels.

A source is one input as a kernel reads it: an input of the request, an output of the stage, the result of a transform;
a string input is a source for each seed that its values are hashed with. All of this is made once from a manifest, when
a version is loaded. Requests are bound by it (binding).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.features.input_reader import InputReader, Reading
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import COMBINERS, UNREAD, USER, Input, Manifest, codes_a_value, user_features

KINDS = {"float": pool.KIND_FLOAT, "floats": pool.KIND_BLOCK, "id": pool.KIND_ONE, "string": pool.KIND_ONE}


class Sources(NamedTuple):
    """The sources of one model, and how they are read.

    Attributes:
        numbers: Number of each source, by name and seed: first the request's inputs, then the stage's outputs, then the
            transforms.
        sent: What the request sends, in the order of the numbers.
        keys: Inputs that nothing reads here, checked if they are sent: keys of online features.
        user: Names of the inputs that depend on the user alone, in a model that is divided.
    """

    numbers: dict[tuple[str, int], int]
    specs: dict[str, Input]
    sent: list[Reading]
    staged: list[Reading]
    computed: list[Reading]
    keys: list[Reading]
    user: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest, stage_runs: bool) -> Sources:
        """Return the sources of a manifest; `stage_runs` if requests are bound with its stage."""
        lookups, transforms = manifest.lookups, manifest.transforms
        read = {f.input for f in lookups} | {s.time for s in manifest.sequences}
        unread = {t.name for t in transforms} - read
        keys = {name for name, filler in manifest.fillers.items() if filler.kind == UNREAD}
        keys -= {entity.key for entity in manifest.entities}
        specs = {i.name: i for i in manifest.sources if i.name not in unread and i.name not in keys}
        numbers = _numbers(manifest, specs)
        # Floats that the kernel may never see, because a transform or the stage reads them.
        read_here = {name for t in transforms for name in t.inputs}
        read_here |= {i.name for i in manifest.inputs} if stage_runs else set()
        finite = {i.name for i in manifest.inputs if i.dtype == "float32" and i.name in read_here}
        looked_up = {f.input for f in lookups if f.table}
        transformed = {t.name for t in transforms}
        readings: list[Reading] = [
            (
                InputReader(spec, name in looked_up, name in finite, name in transformed),
                [seed for owner, seed in numbers if owner == name],
            )
            for name, spec in specs.items()
        ]
        first = len(manifest.inputs) - len(keys)
        last = first + (len(manifest.stage.outputs) if manifest.stage else 0)
        user = {f.input for f in user_features(manifest.features)}
        user |= {name for s in manifest.sequences for name in (*s.inputs, *(c.input for c in s.columns))}
        return cls(
            numbers,
            specs,
            readings[:first],
            readings[first:last],
            readings[last:],
            [(InputReader(i, False, False), [0]) for i in manifest.inputs if i.name in keys],
            frozenset(user if USER in manifest.graphs else ()),
        )


def _numbers(manifest: Manifest, specs: dict[str, Input]) -> dict[tuple[str, int], int]:
    seed_of = {t.name: t.hash_seed for t in manifest.tables}
    seeds: dict[str, set[int]] = {name: set() for name in specs}
    for feature in manifest.lookups:
        if feature.table:
            seeds[feature.input].add(seed_of[feature.table])
    for entity in manifest.entities:
        seeds[entity.key].add(seed_of[entity.table])
    numbers: dict[tuple[str, int], int] = {}
    for name, spec in specs.items():
        for seed in sorted(seeds[name] or {0}) if spec.dtype == "string" else [0]:
            numbers[name, seed] = len(numbers)
    return numbers


def lookup_plan(manifest: Manifest, sources: Sources) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the plan and scaling (kernels.pool) of features, then of columns of sequences, then of the stage."""
    tables = {t.name: (number, t.hash_seed) for number, t in enumerate(manifest.tables)}
    staged = {i.name for i in manifest.stage.outputs} if manifest.stage else set()
    hashed = {t.name: codes_a_value(t) for t in manifest.transforms}
    plan = np.zeros((len(manifest.lookups), pool.PLAN_FIELDS), np.int64)
    scaling = np.zeros((len(manifest.lookups), pool.SCALING_FIELDS), np.float32)
    for row, f in enumerate(manifest.lookups):
        table, seed = tables[f.table] if f.table else (-1, 0)
        spec = sources.specs[f.input]
        kind, codes = KINDS.get(f.kind, pool.KIND_MANY), hashed.get(f.input, 1)
        if f.kind == "floats" and spec.ragged:
            kind = pool.KIND_FLOATS
        plan[row] = (
            kind,
            sources.numbers[f.input, seed if spec.dtype == "string" else 0],
            max(f.column, 0),
            table,
            COMBINERS[f.combiner].code,
            f.max_length * codes,
            f.offset,
            f.width,
            codes,
        )
        scaling[row] = (f.log1p, f.mean, f.scale, np.inf if f.input in staged else pool.LARGEST)
    return plan, scaling


def paired_tables(manifest: Manifest) -> set[str]:
    """Return the tables in which features look up the ids of crosses with lists: most of these have no row."""
    crossed = {t.name for t in manifest.transforms if t.op == "cross" and manifest.shapes[t.name].ragged}
    return {f.table for f in manifest.lookups if f.table and f.input in crossed}
