"""A history of events as an input of graphs, and the zoo's networks over one."""

from dataclasses import replace
from functools import cache

import numpy as np

from freshet_serving.compiler.passes.decompose import decompose
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.processor.package import SequenceEntry
from freshet_serving.processor.package.sequences import SequenceColumn
from tests.models.zoo.sequence_models import make_trainer, move_weights

NETWORK_LENGTH = 9
"""Most events of the networks' histories."""


def history(length, dim):
    """Items, their mask, and seconds."""
    item = SequenceColumn("history.item", "ids", "history.item", "item", 0, (dim + 1) * length)
    inputs = ["history.item", "history.time"]
    return SequenceEntry("history", [item], length, (dim + 2) * length, inputs, time="history.time")


@cache
def optimised(arch):
    """(dense graph, manifest) of a network of random weights."""
    options = {} if arch == "din" else {"units": 8, "layers": 2}
    trainer = make_trainer(arch, NETWORK_LENGTH, arch == "hstu", True, **options)
    move_weights(trainer, np.random.default_rng(3))
    dense = decompose(trainer.dense.published())
    return replace(optimise(dense).graph, examples=dense.examples), trainer.manifest
