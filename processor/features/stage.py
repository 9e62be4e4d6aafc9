"""Define the interface to runtimes of a stage: the part of an imported model that is neither lookups nor dense graph.

A stage's runtime is a plug-in, found under the entry point group "freshet.stages" by the name in the manifest: the
engine imports no framework, and a server without that plug-in, or without its library, refuses such a version with one
line and serves the others. Only installed runtimes can be named; a package contains data, never code.
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
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.package import Input, Manifest, StageLookup

GROUP = "freshet.stages"
NONE: Mapping[str, Any] = MappingProxyType({})


class StageRefusal(BadInput):
    """Raised if a stage refuses a request while a batch is filled. All rows have been written by then."""


class Stage(Protocol):
    """A loaded stage. Shared by all threads."""

    @property
    def reads(self) -> Collection[str]:
        """Names of the inputs that it reads."""

    def check(self, inputs: Mapping[str, Column]) -> None:
        """Check what concerns all rows of a request together: a run may have some of them.

        Args:
            inputs: Columns by the manifest's names, checked against it.

        Raises:
            BadInput: The model cannot read the rows together.
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
    """Return the loaded stage of a manifest.

    Args:
        manifest: A manifest that has a stage.
        data: The stage's bytes.

    Raises:
        BadInput: Its runtime is not installed here.
    """
    spec = manifest.stage
    assert spec is not None, "the manifest has a stage"
    for point in entry_points(group=GROUP, name=spec.runtime):
        runtime: StageRuntime = point.load()
        return runtime(data, manifest.inputs, spec.outputs, *([spec.lookups] if spec.lookups else []))
    raise BadInput(f"stage: runtime {spec.runtime[:64]!r} is not installed on this server: {how_to_install('train')}")
