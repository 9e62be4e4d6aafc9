"""The seam between the engine and whatever runs a model's stage: the part of an imported model that is neither table
lookups nor dense graph.

A stage's runtime is a plug-in, found under the entry point group "freshet.stages" by the name that the manifest gives:
the engine imports no framework, and a server without that plug-in, or without its library, refuses such a version with
one line and serves the others. Only runtimes that are installed can be named; a package brings data, never code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Protocol

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.package import Input, Manifest

GROUP = "freshet.stages"


class Stage(Protocol):
    """A stage, loaded. Shared by all threads."""

    def run(self, inputs: Mapping[str, Column], rows: int) -> Mapping[str, Column]:
        """The stage's outputs for a request of so many rows; inputs of one row are broadcast.

        inputs: by the manifest's names, checked against it. Every output has `rows` rows. Raises BadInput when the
        model refuses the inputs.
        """


class StageRuntime(Protocol):
    """A runtime of stages, which an entry point names."""

    def __call__(self, data: bytes, inputs: Sequence[Input], outputs: Sequence[Input]) -> Stage:
        """Loads a stage; raises BadInput when its library is missing, Corrupt when the bytes are none of its."""


def load_stage(manifest: Manifest, data: bytes) -> Stage:
    """The stage of a manifest that has one; raises BadInput when nobody here can run it."""
    spec = manifest.stage
    assert spec is not None, "asked for by those whose manifest has one"
    for point in entry_points(group=GROUP, name=spec.runtime):
        runtime: StageRuntime = point.load()
        return runtime(data, manifest.inputs, spec.outputs)
    raise BadInput(f"stage: runtime {spec.runtime[:64]!r} is not installed on this server: {how_to_install('train')}")
