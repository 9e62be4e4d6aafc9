"""A guarded model as a server opens it, and the deltas that are fed to it."""

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.served_version import ServedVersion
from tests.support.guarded import as_inputs
from tests.support.packages import connect

GOOD = 12


def opened(root, delta_guard=None, asked=True):
    """The model as a server opens it, asked for rows."""

    def load(reader):
        return ServedVersion(reader, 4, SystemClock())

    policy = ModelPolicy.parse({"delta_guard": delta_guard}, "model.small") if delta_guard else None
    model = ServedModel("small", Repository(root), load, connect, SystemClock(), policy=policy)
    model.poll()
    if asked:
        ask(model)
    return model


def ask(model):
    """Forty requests of eight rows."""
    replica = model.pick().replicas
    for seed in range(40):
        replica.sample.take(replica.plan.bind_inputs(as_inputs(8, seed)))


def drop(root, delta):
    write_delta(root / "small" / "1" / "deltas" / f"{delta.step}.safetensors", delta)


def chain(root):
    return ChangeLog.of(Repository(root).version("small", 1))


def served(model):
    return str(model.pick().generation)


def feed(root, model, stream, count=GOOD):
    for _ in range(count):
        drop(root, stream.good())
        model.poll()


def publish_all(root, deltas):
    for delta in deltas:
        chain(root).publish(delta)
