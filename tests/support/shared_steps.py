"""Trainers of equal networks share what TensorFlow has traced and XLA compiled, within a process that runs tests.

A step's functions are pure: weights, moments and generators are arguments (models.training.dense_step). So they are
the same for the same network, features and settings, and most tests train one of a few networks. To trace and compile
is three quarters of such a test's time.

Tests of several processes run each rank in a thread of its own: which step is being made is a thread's own knowledge,
and one lock guards the shared dictionaries, since a full one drops its oldest entry.
"""

import sys
import threading
from dataclasses import replace
from functools import wraps
from importlib import import_module
from types import SimpleNamespace

import numpy as np

from tests.support.shared_graphs import mark_as_shared

MODULE = "freshet_serving.models.training.dense_step"
NEXT_ITEM = "freshet_serving.models.training.next_item_step"
MOST, MOST_GRAPHS = 256, 32
READ = ("batch_rows", "dense_clip_norm", "dense_weight_decay")
"""The settings that functions of a step read: rates are arguments, first weights and generators as well."""


def share_step_functions():
    """Let trainers share from now on; does nothing before the first test that imports them."""
    module = sys.modules.get(MODULE)
    if module is None:
        return
    if not hasattr(module.DenseStep, "shared"):
        _share(module)
    if NEXT_ITEM in sys.modules:
        sys.modules[NEXT_ITEM].XlaFunction = module.XlaFunction


def _share(module):
    step, functions, create = module.DenseStep, module.DenseFunctions, module.XlaFunction
    compiled_functions, alone, graphs = {}, {}, {}
    zoo = import_module("freshet_serving.models.zoo.architectures").ARCHITECTURES
    making, lock = threading.local(), threading.RLock()
    first_step, first_functions, found_alone = step.__init__, functions.__init__, functions.rows_are_alone
    first_graph = module.DenseGraph.from_keras

    def key():
        """Return what names the step that this thread is making; None outside."""
        return getattr(making, "key", None)

    @wraps(first_step)
    def begin_step(self, manifest, settings, *arguments, **named):
        options = {name: named[name] for name in named if name != "worker_pool"}
        network = manifest.arch, manifest.features, manifest.sequences
        read = [getattr(settings, name) for name in READ]
        outer = key(), getattr(making, "of_zoo", False)
        making.key = repr((type(self), *network, read, arguments[:2], options))
        # Objects that are named by their address may be others in the next run.
        making.of_zoo = manifest.arch in zoo and " at 0x" not in making.key
        try:
            first_step(self, manifest, settings, *arguments, **named)
        finally:
            making.key, making.of_zoo = outer

    def graph_of(model):
        """Return the graph that the first of equal networks had, which is traced already, with this one's weights."""
        with lock:
            first = graphs.get(key())
            if first is None:
                if len(graphs) >= MOST_GRAPHS:
                    del graphs[next(iter(graphs))]
                graphs[key()] = first = first_graph(model)
                mark_as_shared(first)
                return first
        variables = (*model.trainable_variables, *model.non_trainable_variables)
        weights = {v.path: np.array(v.numpy()) for v in variables if v.dtype == "float32"}
        return replace(first, weights=weights)

    @wraps(first_functions)
    def begin_functions(self, *arguments, **named):
        first_functions(self, *arguments, **named)
        self.shared_key, self.of_zoo = key(), getattr(making, "of_zoo", False)

    @wraps(found_alone)
    def rows_are_alone(self):
        if self.shared_key is None:
            return found_alone(self)
        with lock:
            if self.shared_key not in alone:
                alone[self.shared_key] = found_alone(self)
            return alone[self.shared_key]

    def shared(function, takes, threads, settings=""):
        owner = getattr(function, "__self__", None)
        if getattr(owner, "shared_key", None) is None:
            return create(function, takes, threads, settings)
        history = repr([getattr(owner, name, None) for name in ("sequence", "item")])
        compiled = owner.shared_key, history, function.__name__, tuple(takes), threads
        if owner.of_zoo:
            # The store reads the zoo's code with the settings; a test's own network may be another in the next run.
            settings = settings or repr(compiled[:3])
        with lock:
            if compiled not in compiled_functions:
                if len(compiled_functions) >= MOST:
                    del compiled_functions[next(iter(compiled_functions))]
                compiled_functions[compiled] = create(function, takes, threads, settings)
            return compiled_functions[compiled]

    step.__init__, functions.__init__, functions.rows_are_alone = begin_step, begin_functions, rows_are_alone
    step.shared, module.XlaFunction = True, shared
    module.DenseGraph = SimpleNamespace(from_keras=graph_of)
