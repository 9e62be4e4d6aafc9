"""The state that loaded stages of every runtime share: how their inputs are fed, and what they give.

Needs no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.processor.columns import Column
from freshet_serving.processor.package import Input, StageLookup

ROWS = "rows/"
"""Begin of the names of inputs that hold rows, which the engine looks up."""


class FedStage:
    """A stage as far as its inputs go (processor.features.stage.Stage)."""

    def __init__(self, fed: Mapping[str, FeedSpec], outputs: Sequence[Input], lookups: Sequence[StageLookup]) -> None:
        """Take what a stage reads and gives.

        Args:
            fed: How each input that it reads is fed, by name.
            lookups: Rows that it reads.
        """
        self.fed = fed
        self._outputs, self._rows = list(outputs), [lookup.name for lookup in lookups]

    @property
    def reads(self) -> Collection[str]:
        """As Stage.reads."""
        return self.fed.keys()

    def check(self, inputs: Mapping[str, Column]) -> None:
        """As Stage.check()."""
        for name, fed in self.fed.items():
            fed.check(inputs[name])
