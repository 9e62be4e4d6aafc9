"""[model]: the name, the architecture and its layers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from models.config.toml_sections import section_of, want, want_between, want_one_of
from models.zoo.architectures import ARCHITECTURES
from processor.package.manifest import NAME

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """[model]. name: its folder in the repository; arch: 'deepfm', 'dlrm' or 'package.module:function';
    hidden: units of each hidden layer, () for the architecture's own."""

    name: str
    arch: str = "deepfm"
    hidden: tuple[int, ...] = ()


def read_model(raw: dict[str, Any]) -> ModelConfig:
    """[model], checked; raises BadInput."""
    model = section_of(ModelConfig, raw, "model")
    want(NAME.fullmatch(model.name) is not None, "model.name", "letters, digits, '_', '.', '-'", model.name)
    if not _FUNCTION.fullmatch(model.arch):
        want_one_of(model.arch, ARCHITECTURES, "model.arch", " or 'package.module:function'")
    for i, units in enumerate(model.hidden):
        want_between(units, 1, 65536, f"model.hidden[{i}]")
    return model
