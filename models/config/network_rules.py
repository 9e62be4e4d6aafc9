"""Check that a network of the zoo can read the features, histories and labels of the file.

What the file alone says is refused here, before TensorFlow is imported; a network checks again what it is built of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freshet_serving.compiler.dense.expression import parse as parse_expression
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.toml_sections import require, require_one_of
from freshet_serving.models.zoo.arch import output_names
from freshet_serving.models.zoo.architectures import ARCHITECTURES, NEXT_ITEM, WITHOUT_HISTORIES
from freshet_serving.processor.errors import BadInput

OUTPUTS = {"esmm": ("ctr", "cvr", "ctcvr")}
"""Outputs of networks that do not name them after the labels."""


def check_network(arch: str, labels: Sequence[str], features: Sequence[FeatureConfig]) -> None:
    """Check the features and labels of a network of the zoo that learns labels; any other passes. Raises BadInput.

    `features` include the columns of histories, with dim 0 where the network does not read them.
    """
    if arch not in ARCHITECTURES or arch in NEXT_ITEM:
        return
    output_names(labels)
    if arch == "esmm":
        require(len(labels) == 2, "data.label", f"two columns for {arch}, clicked and converted", len(labels))
    read = [f for f in features if f.sequence is None and not f.wide]
    require(bool(read), "features", "one that the network reads", "only features of wide = true alone")
    if arch == "two_tower":
        items = [f.side == "item" for f in read]
        for side, exists in (("user", not all(items)), ("item", any(items))):
            require(exists, "features", f"one of side {side!r} for {arch}", "none")
    columns_of: dict[str, list[FeatureConfig]] = {}
    for f in features:
        if f.sequence is not None:
            columns_of.setdefault(f.sequence.name, []).append(f)
    if arch not in WITHOUT_HISTORIES:
        require(bool(columns_of), "sequences", f"a section [sequences.<name>] for {arch}", "none")
    for name, columns in columns_of.items():
        _check_history(arch, name, columns, [f for f in read if not f.counts])


def check_fusion(
    arch: str, labels: Sequence[str], features: Sequence[FeatureConfig], fusion: Mapping[str, str]
) -> None:
    """Raise BadInput unless expressions name outputs of a network of the zoo, floats, or earlier expressions."""
    if arch not in ARCHITECTURES or arch in NEXT_ITEM:
        return
    names = [*OUTPUTS.get(arch, output_names(labels)), *(f.name for f in features if f.kind == "float")]
    for output, text in fusion.items():
        for name in parse_expression(text, f"fusion.{output[:64]}").names:
            require_one_of(name, names, f"fusion.{output[:64]}")
        names.append(output)


def _check_history(arch: str, name: str, columns: Sequence[FeatureConfig], features: Sequence[FeatureConfig]) -> None:
    """Raise BadInput if a network does not read a history, or has no candidates to compare its events with."""
    where = f"sequences.{name}"
    if arch in WITHOUT_HISTORIES:
        if any(f.dim for f in columns):
            raise BadInput(
                f"{where}: expected a network that reads histories, got model.arch {arch!r}; use another, or make a"
                f' feature of it: from = "{columns[0].name}", take = -1'
            )
        return
    tables = [f.table for f in columns if f.table]
    readers = [f for f in features if f.table in tables and f.combiner != "none"]
    if any(f.side == "item" for f in readers):
        return
    advice = f'name its table in {where}.tables, and set side = "item" in its section'
    if readers:
        advice = f'set side = "item" in [features.{readers[0].name}], which has side {readers[0].side!r}'
    raise BadInput(
        f"{where}: expected a feature of side item that reads one of its tables, {', '.join(tables)[:80]}, got none;"
        f" {advice}"
    )
