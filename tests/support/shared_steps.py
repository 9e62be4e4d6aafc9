"""Trainers of equal networks share what TensorFlow has traced and XLA compiled, within a process that runs tests.

A step's functions are pure: weights, moments and generators are arguments (models.training.dense_step). So they are
the same for the same network, features and settings, and most tests train one of a few networks. To trace and compile
is three quarters of such a test's time. Half of the rest is Keras, which builds the network and tries what it computes:
its variables only give a step's first values, so steps of the same seed share them, put back to these values.

Tests of several processes run each rank in a thread of its own: which step is being made is a thread's own knowledge,
and one lock guards the shared dictionaries, since a full one drops its oldest entry.
"""

import hashlib
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
MOST, MOST_GRAPHS, MOST_NETWORKS = 256, 32, 64
READ = ("dense_clip_norm", "dense_weight_decay")
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
    compiled_functions, alone, scoring, graphs, networks, divisions, biases = {}, {}, {}, {}, {}, {}, {}
    of_functions = sys.modules[functions.__module__]
    zoo = import_module("freshet_serving.models.zoo.architectures").ARCHITECTURES
    making, lock = threading.local(), threading.RLock()
    first_step, first_functions, found_alone = step.__init__, functions.__init__, functions.rows_are_alone
    first_graph, first_network = module.DenseGraph.from_keras, module.with_wide_weights
    first_bias, found_scoring, first_division = step.set_initial_bias, functions.steps_score, of_functions.divide

    def key():
        """Return what names the step that this thread is making; None outside."""
        return getattr(making, "key", None)

    @wraps(first_step)
    def begin_step(self, manifest, settings, *arguments, **named):
        options = {name: named[name] for name in named if name != "worker_pool"}
        outer = key(), getattr(making, "of_zoo", False)
        network, fusion = (*arguments, named.get("network"), named.get("fusion"))[:2]
        # Of features a network sees their columns alone, not how values are read or scaled.
        layout = module.DenseInput.from_features(manifest.features, module.dense_sequences(manifest.sequences))
        more = manifest.features if fusion else (), manifest.transforms if network and network.counts else ()
        read = [getattr(settings, name) for name in READ]
        making.network = repr((type(self), manifest.arch, layout, more, arguments[:2], options))
        making.key = f"{making.network} {read}"
        # Objects that are named by their address may be others in the next run.
        making.of_zoo = manifest.arch in zoo and " at 0x" not in making.key
        # Threads that train at once have networks of their own, whose variables they may change.
        self.shared_key = making.seeded = making.network, settings.known_seed, threading.get_ident()
        try:
            first_step(self, manifest, settings, *arguments, **named)
        finally:
            making.key, making.of_zoo = outer

    def network_of(*arguments):
        """Return the network that the first of equal steps had, with the first values of its variables."""
        if not getattr(making, "of_zoo", False):
            return first_network(*arguments)
        with lock:
            if making.seeded not in networks:
                if len(networks) >= MOST_NETWORKS:
                    del networks[next(iter(networks))]
                arch = first_network(*arguments)
                networks[making.seeded] = arch, [(v, v.numpy()) for v in _variables(arch)]
                return arch
            arch, values = networks[making.seeded]
            for variable, value in values:
                variable.assign(value)
            return arch

    def division_of(logits, histories):
        """Return the parts of a network, made once; it is kept with them, so that no other one has its number."""
        with lock:
            network = id(logits), tuple(histories)
            if network not in divisions:
                if len(divisions) >= MOST_NETWORKS:
                    del divisions[next(iter(divisions))]
                divisions[network] = logits, first_division(logits, histories)
            return divisions[network][1]

    @wraps(first_bias)
    def set_initial_bias(self, log_odds):
        weights = hashlib.sha256(b"".join(array.tobytes() for array in self.state.named().values())).digest()
        follows_from = self.shared_key, tuple(map(float, log_odds)), weights
        with lock:
            if follows_from in biases:
                self.state.assign(biases[follows_from])
                return
            first_bias(self, log_odds)
            if len(biases) >= MOST:
                del biases[next(iter(biases))]
            biases[follows_from] = {path: np.array(array) for path, array in self.state.named().items()}

    def graph_of(model):
        """Return the graph that the first of equal networks had, which is traced already, with this one's weights."""
        with lock:
            first = graphs.get(making.network)
            if first is None:
                if len(graphs) >= MOST_GRAPHS:
                    del graphs[next(iter(graphs))]
                graphs[making.network] = first = first_graph(model)
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

    @wraps(found_scoring)
    def steps_score(self):
        if self.shared_key is None:
            return found_scoring(self)
        with lock:
            if self.shared_key not in scoring:
                scoring[self.shared_key] = found_scoring(self)
            return scoring[self.shared_key]

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

    step.__init__, step.set_initial_bias = begin_step, set_initial_bias
    functions.__init__, functions.rows_are_alone, functions.steps_score = begin_functions, rows_are_alone, steps_score
    step.shared, module.XlaFunction, module.with_wide_weights = True, shared, network_of
    of_functions.divide = division_of
    module.DenseGraph = SimpleNamespace(from_keras=graph_of)


def _variables(arch):
    """Return the variables of an architecture, each once."""
    models = arch.logits, arch.scores, arch.next_item and arch.next_item.states, arch.towers and arch.towers.vectors
    return {id(v): v for model in models if model is not None for v in model.variables}.values()
