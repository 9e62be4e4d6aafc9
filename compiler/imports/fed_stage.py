"""The state that loaded stages of every runtime share: how their inputs are fed. Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.processor.columns import Column
from freshet_serving.processor.package import Input, StageLookup

ROWS = "rows/"
"""Begin of the names of inputs that hold rows, which the engine looks up."""


class FedStage:
    """A stage as far as its inputs go (processor.features.stage.Stage); `fed` has the inputs that it reads, by name."""

    def __init__(self, fed: Mapping[str, FeedSpec], outputs: Sequence[Input], lookups: Sequence[StageLookup]) -> None:
        self.fed = fed
        self._outputs, self._rows = list(outputs), [lookup.name for lookup in lookups]

    @property
    def reads(self) -> Collection[str]:
        return self.fed.keys()

    def check(self, inputs: Mapping[str, Column]) -> None:
        for name, fed in self.fed.items():
            fed.check(inputs[name])
