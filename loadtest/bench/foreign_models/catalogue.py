"""The lists of models, and where each is built."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

MODELS, FREE_LENGTHS = "models", "free-lengths"
LISTS = {name: Path(__file__).parent / f"{name.replace('-', '_')}.toml" for name in (MODELS, FREE_LENGTHS)}
AIMS = {MODELS: 76, FREE_LENGTHS: 10}
"""By list, how many of its models are to be served."""
OWN = ""
"""The environment of this repository, which has ONNX."""
TORCH, TENSORFLOW, TREES = "torch", "tf", "trees"
ENVIRONMENTS = {
    "deepctr_torch": TORCH,
    "torch_sequences": TORCH,
    "torch_bags": TORCH,
    "torch_lengths": TORCH,
    "onnx_by_hand": OWN,
    "sklearn": TREES,
    "boosted_trees": TREES,
    "deepctr": TENSORFLOW,
    "tf1": TENSORFLOW,
    "tfrs": TENSORFLOW,
    "keras2": TENSORFLOW,
    "keras3": TENSORFLOW,
    "zoo": TORCH,
}


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """One line of the list.

    Attributes:
        name: Name of the model.
        about: What it is.
        family: Name of its family, as the list has it.
        title: The family as the report names it.
    """

    name: str
    about: str
    family: str
    title: str

    @property
    def builder(self) -> str:
        """Module of `builders` that builds it: DeepCTR's zoo has the environment and the columns of DeepCTR."""
        return "deepctr" if self.family == "zoo" and self.name.startswith("deepctr_") else self.family

    @property
    def environment(self) -> str:
        return ENVIRONMENTS[self.builder]


def entries(listed: str = MODELS) -> list[ForeignEntry]:
    """Return a list's models, in its order."""
    families = tomllib.loads(LISTS[listed].read_text())
    return [
        ForeignEntry(name, about, family, section["title"])
        for family, section in families.items()
        for name, about in section["models"].items()
    ]
