"""The seam of rows on a device: a subgraph fills what its executables read there."""

from freshet_serving.processor.backends import IoSpec
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.running.placed_rows import PlacedInputs
from tests.support.packages import manifest


class Placed(PlacedInputs):
    spec = IoSpec({"lines": (None, 3)}, {"score": (None, 1)})

    def __init__(self):
        self.filled = []

    def fill(self, view, inputs):
        self.filled.append((view, inputs))


def test_placed_inputs_take_the_place_of_the_packages_own():
    run = GraphRun(manifest(), SparsePlan(manifest())).undivided
    own, placed = run.spec, Placed()
    run.place(placed)
    run.fill("view", {"lines": "buffer"})
    assert placed.filled == [("view", {"lines": "buffer"})]
    assert run.spec is placed.spec
    assert run.spec != own
    assert [name for name, _ in run.fillers] == list(own.inputs), "what fills the package's inputs is still known"
