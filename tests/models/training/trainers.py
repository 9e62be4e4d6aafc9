"""Trainers for tests, and what is compiled of their networks once."""

from __future__ import annotations

import shutil

from freshet_serving.compiler.building import compile as compiling
from freshet_serving.compiler.building import parts as dividing
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.training.spec import draft, measure_scaling
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.package.subgraphs import WHOLE
from tests.support.shared_graphs import columns_of, mark_as_shared


def make_trainer(config, source=None):
    scaling = {} if source is None else measure_scaling(source, config.features)
    return Trainer(draft(config, scaling), config.train, config.network)


class CompiledOnce:
    """Stands in for parts, compile_graph and DenseGraph.save: what holds no weights is made once and copied after."""

    def __init__(self, cache):
        self._cache, self._entries, self._parts = cache, {}, {}

    def _key(self, graph):
        return str(hash((tuple(graph.inputs.items()), tuple((name, a.shape) for name, a in graph.weights.items()))))

    def parts(self, graph, features, buckets, histories=()):
        """The parts of the first graph of these features and shapes: of them compile_graph takes no weight."""
        key = f"{self._key(graph)} {graph.outputs} {columns_of(features)} {buckets}"
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
