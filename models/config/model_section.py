"""Read and validate [model]: name, architecture, its options, and the loss."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.models.config.arch_options import read_options
from freshet_serving.models.config.toml_sections import parse_section, require, require_one_of, require_positive
from freshet_serving.models.zoo.arch import resolve_arch, takes_labels
from freshet_serving.models.zoo.architectures import ARCHITECTURES, DEFAULT_ARCH, NEXT_ITEM, RETRIEVAL
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option, required
from freshet_serving.processor.package import NAME

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The section [model], validated.

    Attributes:
        options: All other keys, as the architecture's builder accepts them; for a user's own function, unchecked until
            the network is built.
    """

    name: str = field(metadata=required("name of its folder in the repository and in requests"))
    arch: str = option(
        DEFAULT_ARCH,
        "architecture: a network of the [zoo](architectures.md), or [your own](../how-to/custom-models.md) as "
        '`"package.module:function"`',
    )
    loss: str = option(
        "",
        '`log_loss`, or [your own loss](../how-to/custom-models.md#a-custom-loss) as `"package.module:function"`',
        empty="the log-loss; for `two_tower` [the softmax over items](../how-to/sequences.md#retrieve-two-towers)",
    )
    label_weights: tuple[float, ...] = option((), "with several labels, the weight of each", empty="all 1")
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The settings that define a network and its objective, named as in ModelConfig.

    Attributes:
        wide: Features that are added to the logit (models.zoo.wide_weights).
        counts: Features whose rows are counts (models.zoo.counted_odds).
        towers: The features that tell users and items apart; None for a network that does not learn to retrieve.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ("label",)
    loss: str = ""
    label_weights: tuple[float, ...] = ()
    wide: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    towers: tuple[str, str] | None = None


ONE_LABEL = NetworkConfig()
LOG_LOSS = "log_loss"
"""Name of the log-loss, for networks that learn something else by default."""
KEYS = tuple(f.name for f in dataclasses.fields(ModelConfig) if f.name != "options")


def read_model(raw: dict[str, Any], labels: Sequence[str]) -> ModelConfig:
    options = {key: value for key, value in raw.items() if key not in KEYS}
    model = parse_section(ModelConfig, {key: raw[key] for key in KEYS if key in raw}, "model", options=options)
    require(NAME.fullmatch(model.name) is not None, "model.name", "letters, digits, '_', '.', '-'", model.name)
    if not _FUNCTION.fullmatch(model.arch):
        require_one_of(model.arch, ARCHITECTURES, "model.arch", " or 'package.module:function'")
        builder = resolve_arch(model.arch)
        if len(labels) > 1 and not takes_labels(builder):
            several = ", ".join(name for name in ARCHITECTURES if takes_labels(resolve_arch(name)))
            raise BadInput(f"model.arch: expected {several} for several labels, got {model.arch!r}")
        model = dataclasses.replace(model, options=read_options(builder, options, "model", KEYS))
    if model.loss == LOG_LOSS and model.arch not in (RETRIEVAL, *NEXT_ITEM):
        # What every other network learns by default.
        model = dataclasses.replace(model, loss="")
    if model.loss and model.loss != LOG_LOSS:
        valid = _FUNCTION.fullmatch(model.loss) is not None
        require(valid, "model.loss", "'log_loss' or 'package.module:function', or nothing for the default", model.loss)
    if model.label_weights:
        if model.loss:
            raise BadInput("model.label_weights: allowed only without model.loss, which weighs labels itself")
        if len(model.label_weights) != len(labels):
            got = len(model.label_weights)
            raise BadInput(f"model.label_weights: expected {len(labels)}, one for each of data.label, got {got}")
        for i, weight in enumerate(model.label_weights):
            require_positive(weight, f"model.label_weights[{i}]")
    return model
