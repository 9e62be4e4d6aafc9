"""Models opened as a server opens them, and the deltas that a trainer publishes for them."""

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository import NO_KEYS, Repository
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.packages import connect, make_delta, make_weights, row_of

USERS = range(6)


AT_ONCE = ModelPolicy.parse({"bake_s": 0}, "model.small")
"""A replaced version is unloaded with the switch."""


def open_model(root, undo_depth=4, keyring=NO_KEYS, policy=AT_ONCE, clock=None, scratch=""):
    """The model as a server opens it: loaded, with its deltas replayed."""

    def load(reader):
        return ServedVersion(reader, undo_depth, SystemClock())

    repository = Repository(root).with_keys(keyring)
    served = ServedModel("small", repository, load, connect, clock or SystemClock(), policy=policy, scratch=scratch)
    served.poll()
    return served


def open_with(root, **policy):
    """The model under a policy, loaded."""
    return open_model(root, policy=ModelPolicy.parse({"bake_s": 0, **policy}, "model.small"))


def refuse_to_write(*_):
    raise NotReady("the repository cannot be written")


def deltas_folder(root, version=1):
    return root / "small" / str(version) / "deltas"


def publish(root, step, users=(0,), version=1, **changes):
    """Writes a delta as the trainer does; returns its path."""
    path = deltas_folder(root, version) / f"{step}.safetensors"
    write_delta(path, make_delta(step, users, version=version, **changes))
    return path


def assert_serves(model, generation, changed=(), version=None, dense_seed=0):
    """The generation, and user -> content number of the users that the full version does not hold like that."""
    served = model.pick(version)
    assert str(served.generation) == generation
    tables, dense = served.export()
    wanted = dict.fromkeys(USERS, 0) | dict(changed)
    got = {int(k): tuple(row) for k, row in zip(*tables["user"])}
    assert got == {k: tuple(row_of(k, tag)) for k, tag in wanted.items() if tag is not None}
    for name, weights in make_weights(dense_seed).items():
        np.testing.assert_array_equal(dense[name], weights)
