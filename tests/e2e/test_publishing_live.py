"""Two servers of one repository, and trainers of other frameworks: fresh again right after a rollback."""

import json
import time

import numpy as np
import pytest

from freshet_serving import Publisher
from freshet_serving.processor.engine import Processor, ProcessorConfig
from tests.e2e.servers import ALONE, LiveServer
from tests.models.publishing.torches import run_torch

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROLLED_BACK_S, FRESH_S = 1.0, 5.0


def generations(servers, model):
    return [server.generation(model) for server in servers]


def wait_for_all(servers, model, generation, within_s):
    """Seconds until every server serves a generation; fails when that takes longer."""
    began_s = time.monotonic()
    while (seen := generations(servers, model)) != [str(generation)] * len(servers):
        assert time.monotonic() - began_s < within_s, f"{generation} wanted everywhere within {within_s} s, got {seen}"
        time.sleep(0.01)
    return time.monotonic() - began_s


def roll_back(server, model, generation):
    status, reply = server.post_json(f"/admin/models/{model}/rollback", {"generation": str(generation)})
    assert status == 200, reply


def parts_of(processor, model):
    """What an engine has in memory, as bytes by name."""
    tables, dense = processor.host.catalogue[model].pick().export()
    parts = {f"{name} {part}": a.tobytes() for name, pair in tables.items() for part, a in zip(("keys", "rows"), pair)}
    return parts | {name: a.tobytes() for name, a in dense.items()}


@pytest.fixture
def pair(tmp_path):
    """start(repository): two servers of it."""
    servers = []

    def start(repository):
        for name in ("a", "b"):
            servers.append(LiveServer(repository, *ALONE, log=tmp_path / f"{name}.log"))
        for server in servers:
            server.wait_ready()
        return servers

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_plain_keras_fit_publishes_with_two_more_lines(tmp_path, pair):
    keras = pytest.importorskip("keras", reason="needs the train extra")
    from freshet_serving.compiler.imports.importing import import_model

    user, item = keras.Input((1,), dtype="int64", name="user"), keras.Input((1,), dtype="int64", name="item")
    rows = [keras.layers.Embedding(50, 4, name=f"{i.name}_rows")(i) for i in (user, item)]
    x = keras.layers.Concatenate()([keras.layers.Flatten()(r) for r in rows])
    model = keras.Model([user, item], keras.layers.Dense(1, activation="sigmoid", name="score")(x))
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
    model.save(tmp_path / "model.keras")
    repository = tmp_path / "repository"
    import_model(tmp_path / "model.keras", repository, "ctr")
    servers = pair(repository)

    def fit(seed):
        draw = np.random.default_rng(seed)
        inputs = {name: draw.integers(0, 50, (256, 1)) for name in ("user", "item")}
        labels = draw.integers(0, 2, (256, 1))
        model.fit(inputs, labels, batch_size=32, verbose=0, callbacks=[callback])

    callback = Publisher(repository, "ctr").keras(every_batches=2)  # One line; callbacks=[callback] is the other.
    fit(0)
    good = callback.generation
    fit(1)
    wait_for_all(servers, "ctr", callback.generation, FRESH_S)
    roll_back(servers[1], "ctr", good)
    told_s = wait_for_all(servers, "ctr", good, ROLLED_BACK_S)
    fit(2)
    fresh_s = wait_for_all(servers, "ctr", callback.generation, FRESH_S)
    print(f"the other server after {told_s:.2f} s, both fresh after {fresh_s:.2f} s")

    asked = {"user": [[3], [7]], "item": [[5], [49]]}
    wanted = model.predict({name: np.array(column) for name, column in asked.items()}, verbose=0)
    for server in servers:
        scores, _ = server.predict("ctr", {name: np.ravel(column).tolist() for name, column in asked.items()})
        np.testing.assert_allclose(np.ravel(scores), np.ravel(wanted), atol=1e-5)
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        parts = parts_of(processor, "ctr")
    for name in ("user", "item"):
        rows = model.get_layer(f"{name}_rows").embeddings.numpy()
        assert parts[f"{name}_rows.embeddings rows"] == rows.tobytes()


def test_plain_pytorch_loop_publishes_with_two_more_lines(tmp_path, pair):
    """The loop is in a process of a Python that has PyTorch; it rolls back on one server and asks both."""
    from tests.e2e.torch_loop import write_served

    repository = tmp_path / "repository"
    write_served(repository)
    servers = pair(repository)
    ports = [server.admin_port for server in servers]
    said = json.loads(run_torch("tests.e2e.torch_loop", repository, *ports).splitlines()[-1])
    print(said)
    assert said["told_s"] < ROLLED_BACK_S
    assert said["fresh_s"] < FRESH_S
    assert generations(servers, "small") == [said["generation"]] * 2
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        parts = parts_of(processor, "small")
    assert parts["user rows"].hex() == said["user rows"]
    assert parts["mlp_0/bias"].hex() == said["mlp_0/bias"]
