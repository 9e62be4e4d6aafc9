"""Trainers for tests, made once and put back to their first state: a new one costs a second of tracing."""

from __future__ import annotations

import shutil

from freshet_serving.compiler.building import compile as compiling
from freshet_serving.compiler.building import parts as dividing
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.config.model_section import ONE_LABEL
from freshet_serving.models.runs.step_profile import StepProfile
from freshet_serving.models.training.spec import draft, measure_scaling
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.package.subgraphs import WHOLE
from tests.support.shared_graphs import mark_as_shared


def make_trainer(config, source):
    return Trainer(draft(config, measure_scaling(source, config.features)), config.train, config.network)


class Trainers:
    """Stands in for the class Trainer: the same manifest and settings get the same object, as good as new."""

    def __init__(self):
        self._made = []

    def __call__(self, manifest, settings, network=ONE_LABEL, fusion=None, tables=None, scratch=None):
        for known, trainer, weights, optimizer in self._made:
            if known == (manifest, settings, network, fusion, tables):
                renew(trainer, weights, optimizer)
                return trainer
        trainer = Trainer(manifest, settings, network, fusion, tables, scratch)
        known = (manifest, settings, network, fusion, tables)
        self._made.append((known, trainer, trainer.dense.weights(), trainer.dense.state.optimizer()))
        return trainer


def renew(trainer, weights, optimizer):
    """Puts a trainer back to the state in which `weights` and `optimizer` were taken from it, without any row."""
    trainer.clear()
    trainer.dense.state.restore(weights, optimizer)
    trainer.steps = 0
    trainer.profile = StepProfile(lambda: 0.0)


class CompiledOnce:
    """Stands in for parts, compile_graph and DenseGraph.save: what holds no weights is made once and copied after."""

    def __init__(self, cache):
        self._cache, self._entries, self._parts = cache, {}, {}

    def _key(self, graph):
        return str(hash((tuple(graph.inputs.items()), tuple((name, a.shape) for name, a in graph.weights.items()))))

    def parts(self, graph, features, buckets, histories=()):
        """The parts of the first graph of these features and shapes: of them compile_graph takes no weight."""
        key = f"{self._key(graph)} {graph.outputs} {features} {buckets}"
        if key not in self._parts:
            self._parts[key] = made = dividing.parts(graph, features, buckets, histories)
            for part in made.by_subgraph.values():
                mark_as_shared(part.graph)
        return self._parts[key]

    def compile_graph(self, graph, version_folder, buckets, progress=None, subgraph=WHOLE):
        key = f"{subgraph}{self._key(graph)}"
        made = self._cache / key / "compiled"
        if key not in self._entries:
            buckets = (16,) if subgraph == WHOLE else buckets
            self._entries[key] = compiling.compile_graph(graph, made.parent, buckets, subgraph=subgraph)
        shutil.copytree(made, version_folder / "compiled", dirs_exist_ok=True)
        return self._entries[key]

    def save(self, graph, path):
        made = self._cache / self._key(graph) / "graph"
        if not made.exists():
            _save(graph, made)
        shutil.copytree(made, path)


_save = DenseGraph.save
