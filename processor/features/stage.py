"""Define the interface to runtimes of a stage: the part of an imported model that is neither lookups nor dense graph.

A runtime is a plug-in, found under the entry point group "freshet.stages" by the name in the manifest: the engine
imports no framework, and a server without that plug-in or its library refuses such a version with one line and serves
the others. Only installed runtimes can be named; a package contains data, never code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest, StageLookup

GROUP = "freshet.stages"
NONE: Mapping[str, Any] = MappingProxyType({})
AT_ONCE = 1 << 24
LARGE = AT_ONCE >> 2
"""Most cells of a run of several rows, and of one beside which others may run (stage_runs)."""


class EndableCall(Protocol):
    """A run that can be ended (processor.backends.EndableRun)."""

    def __call__(self) -> None:
        """Compute; raise EndedRun once end(True) is called."""

    def end(self, now: bool) -> None:
        """End the run in progress, or take that back; safe from any thread."""


class Limit(Protocol):
    """The time that a request has left (processor.running.run_limit.TimeLimit)."""

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""

    def run(self, call: EndableCall) -> None:
        """Run a call, which raises EndedRun if it is still in progress at the limit."""


class TracedStage(Protocol):
    """A stage that counts what its graph computes."""

    def run(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]] = NONE
    ) -> Mapping[str, Column]:
        """As Stage.run()."""

    def made(self) -> list[int]:
        """Return the bytes that operators wrote in each run that ended well, in order; nothing runs after it."""

    @property
    def sized_by(self) -> Collection[str]:
        """Inputs whose values say how large tensors of the graph are."""

    def close(self) -> None:
        """Free what it counts with."""


class EndableStage(Protocol):
    """A stage whose runs end in time, with a twin that counts: more than Stage asks of a runtime.

    A `bounded` one bounds the memory of a run by itself.
    """

    bounded: bool

    @property
    def reads(self) -> Collection[str]:
        """As Stage.reads."""

    def run(
        self,
        inputs: Mapping[str, Column],
        rows: int,
        found: Mapping[str, NDArray[np.float32]] = NONE,
        limit: Limit | None = None,
    ) -> Mapping[str, Column]:
        """As Stage.run(); raise EndedRun at the limit, TooLarge if memory is bounded and does not suffice."""

    def traced(self, data: bytes) -> TracedStage:
        """Return a twin that counts, from the stage's bytes; raise OSError if there is no temporary folder."""


class Stage(Protocol):
    """A loaded stage. Shared by all threads. One with the method `traced` is an EndableStage."""

    @property
    def reads(self) -> Collection[str]:
        """Names of the inputs that it reads."""

    def check(self, inputs: Mapping[str, Column]) -> None:
        """Raise BadInput for inputs that the model refuses, whichever rows of them run together.

        Called when a request is bound for a stage that runs with the batch, which may run some of its rows at a time: a
        request is refused as a whole, or not at all. A stage without this method refuses in run() alone.

        Args:
            inputs: Columns of all rows, by the manifest's names, checked against it.
        """

    def run(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]] = NONE
    ) -> Mapping[str, Column]:
        """Return the stage's outputs for a request; inputs of one row are broadcast.

        Args:
            inputs: Columns by the manifest's names, checked against it.
            rows: Number of rows; every output has as many.
            found: Rows by the names of the manifest's lookups, float32 [values, dim].

        Raises:
            BadInput: The model refuses the inputs.
        """


class StageRuntime(Protocol):
    """A runtime of stages, which an entry point names."""

    def __call__(
        self, data: bytes, inputs: Sequence[Input], outputs: Sequence[Input], lookups: Sequence[StageLookup] = ()
    ) -> Stage:
        """Load a stage.

        Args:
            data: The stage's bytes.
            inputs: The manifest's inputs.
            outputs: The stage's outputs.
            lookups: Rows that it reads.

        Raises:
            BadInput: The runtime's library is missing.
            Corrupt: The bytes are not a stage of this runtime.
        """


def load_stage(manifest: Manifest, data: bytes) -> Stage:
    """Return the loaded stage of a manifest from its bytes; raise BadInput if its runtime is not installed."""
    spec = manifest.stage
    assert spec is not None, "the manifest has a stage"
    for point in entry_points(group=GROUP, name=spec.runtime):
        runtime: StageRuntime = point.load()
        return runtime(data, manifest.inputs, spec.outputs, *([spec.lookups] if spec.lookups else []))
    from freshet_serving.processor.extras import how_to_install

    raise BadInput(f"stage: runtime {spec.runtime[:64]!r} is not installed on this server: {how_to_install('train')}")
