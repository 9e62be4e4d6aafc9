"""How the inputs of a manifest become numbered sources, and its features a plan for kernels."""

from dataclasses import replace

import numpy as np

from freshet_serving.processor.features.sources import Sources, lookup_plan
from freshet_serving.processor.kernels.pool import SOURCE, TABLE
from freshet_serving.processor.package import Feature, Input, TableEntry, Transform
from tests.support.packages import manifest


def of(inputs, features, tables=(), transforms=()):
    width = sum(f.width for f in features)
    return replace(
        manifest(), inputs=inputs, features=features, tables=list(tables), transforms=list(transforms), width=width
    )


def test_strings_are_a_source_for_each_seed():
    tables = [TableEntry(f"t{n}", 2, 0, hash_seed=seed) for n, seed in enumerate([5, 9, 5])]
    made = of(
        [Input("number", "float32"), Input("word", "string")],
        [
            *(Feature(f"f{n}", "string", "word", table=f"t{n}", width=2) for n in range(3)),
            Feature("n", "float", "number"),
        ],
        tables,
    )
    sources = Sources.of(made, False)
    assert sources.numbers == {("number", 0): 0, ("word", 5): 1, ("word", 9): 2}
    assert [(read.name, seeds) for read, seeds in sources.sent] == [("number", [0]), ("word", [5, 9])]
    assert lookup_plan(made, sources)[0][:, [SOURCE, TABLE]].tolist() == [[1, 0], [2, 1], [1, 2], [0, -1]]


def test_transforms_that_nothing_reads_are_no_sources():
    buckets = [Transform(name, "floor_divide", ["user"], [60], []) for name in ("hour", "unread")]
    made = of(
        [Input("user", "int64")], [Feature("hour", "id", "hour", table="t", width=2)], [TableEntry("t", 2, 0)], buckets
    )
    sources = Sources.of(made, False)
    assert list(sources.numbers) == [("user", 0), ("hour", 0)]
    assert [read.name for read, _ in sources.sent] == ["user"]
    assert [(read.name, read.looked_up) for read, _ in sources.computed] == [("hour", True)]


def test_floats_that_a_stage_reads_must_be_finite():
    made = of(
        [Input("price", "float32"), Input("age", "float32")],
        [Feature("price", "float", "price"), Feature("age", "float", "age")],
    )
    assert [read.finite for read, _ in Sources.of(made, False).sent] == [False, False]
    assert [read.finite for read, _ in Sources.of(made, True).sent] == [True, True]
    assert np.isfinite(lookup_plan(made, Sources.of(made, False))[1][:, 3]).all()
