"""Kept users over two workers and one process, with Triton's clients and ours: replies are those of whole requests."""

import os
import signal
import threading
from contextlib import ExitStack

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving import Client, Ragged, UserGone
from tests.e2e.servers import ALONE, LiveServer
from tests.e2e.test_workers_live import replaced, workers
from tests.models.zoo.sequence_models import make_batch, make_trainer, of_request, publish
from tests.serving.access.keyed import Keyed
from tests.support.ranked import MODEL, write_ranked
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

triton_http = pytest.importorskip("tritonclient.http")
triton_grpc = pytest.importorskip("tritonclient.grpc")
LENGTH, CANDIDATES, EVENTS = 64, 8, 40
CLIENTS, CHANGES = 6, 60
ITEMS = ("item", "price")
COLUMNS = ("history.item", "history.action", "history.time")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users")
    trainer = make_trainer("hstu", LENGTH, True, units=16, layers=2)
    trainer.learn(make_batch(64, (LENGTH,), timed=True))
    publish(trainer, folder, (1, CANDIDATES))
    return folder


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def served(request, repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    columns = make_batch(CANDIDATES, (EVENTS,), seed=3, items=38, timed=True).columns
    options = (*request.param, "--user-state-mb", "8")
    with LiveServer(repository, *options, log=folder / "serve.log") as live:
        yield live, of_request(columns, CANDIDATES, 1), folder / "serve.log"


def parts(request, events):
    """The user's inputs with so many events, the events after them, and the candidates."""
    user = {"user": int(request["user"][0])} | {n: Ragged.of([request[n].values[:events].tolist()]) for n in COLUMNS}
    return user, {n: request[n].values[events:].tolist() for n in COLUMNS}, {n: request[n] for n in ITEMS}


def some(events, first, last):
    return {name: values[first:last] for name, values in events.items()}


def asked(live, user, candidates):
    """The scores of a request that is sent whole, on a connection of its own."""
    with Client(live.address(), timeout_s=20) as client:
        return client.rank("m", user, candidates)


class Triton:
    """A user by one of Triton's clients, each request on a connection of its own, so by either worker."""

    def __init__(self, module, address, sequence_id):
        self.module, self.address, self.sequence_id = module, address, sequence_id

    def ask(self, inputs, **sequence):
        module, tensors = self.module, []
        flat = {n: c.values if isinstance(c, Ragged) else np.atleast_1d(c) for n, c in inputs.items()}
        if any(name in inputs for name in COLUMNS):
            flat["history.row_splits"] = np.array([0, len(flat[COLUMNS[0]])])
        for name, values in flat.items():
            kind = "FP32" if values.dtype.kind == "f" else "INT64"
            tensors.append(module.InferInput(name, list(values.shape), kind))
            tensors[-1].set_data_from_numpy(values.astype(np.float32 if kind == "FP32" else np.int64))
        with module.InferenceServerClient(self.address) as client:
            return client.infer("m", tensors, sequence_id=self.sequence_id, **sequence).as_numpy("score")


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("text", [False, True], ids=["number", "text"])
def test_triton_clients_score_what_they_have_prepared_and_appended(served, kind, text):
    live, request, _ = served
    module, port = (triton_http, live.http_port) if kind == "http" else (triton_grpc, live.grpc_port)
    user = Triton(module, f"127.0.0.1:{port}", f"{kind} user" if text else 1000 + len(kind + "g") * (kind == "grpc"))
    inputs, events, candidates = parts(request, 20)
    assert user.ask(inputs, sequence_start=True).shape == (0, 1)
    for event in range(0, 20, 5):
        whole, _, _ = parts(request, 20 + event)
        for _ in range(3):
            np.testing.assert_allclose(user.ask(candidates)[:, 0], asked(live, whole, candidates), rtol=1e-5, atol=1e-6)
        assert user.ask(some(events, event, event + 5)).shape == (0, 1)
    last = user.ask(candidates, sequence_end=True)
    np.testing.assert_allclose(last[:, 0], asked(live, parts(request, EVENTS)[0], candidates), rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="sequence_id: nothing is kept under it"):
        user.ask(candidates)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_events_that_come_late_and_twice_over_both_workers_are_the_whole_history(served, scheme):
    live, request, _ = served
    inputs, events, candidates = parts(request, 10)
    order = np.random.default_rng(0).permutation([*range(30), *range(30)])

    def user():
        return Client(live.address(scheme), timeout_s=20)

    with user() as client:
        client.user("m", f"late {scheme}").prepare(inputs)
    for n in order.tolist():
        with user() as client:
            client.user("m", f"late {scheme}").append(some(events, n, n + 1))
    whole, _, _ = parts(request, EVENTS)
    with user() as client:
        session = client.user("m", f"late {scheme}")
        np.testing.assert_allclose(session.score(candidates), asked(live, whole, candidates), rtol=1e-5, atol=1e-6)
        session.remove(some(events, 25, 30))
        left, _, _ = parts(request, EVENTS - 5)
        np.testing.assert_allclose(session.score(candidates), asked(live, left, candidates), rtol=1e-5, atol=1e-6)
        session.release()
        with pytest.raises(UserGone):
            session.score(candidates)


def test_no_id_is_in_the_log(served):
    live, request, log = served
    inputs, _, candidates = parts(request, 5)
    with Client(live.address(), timeout_s=20) as client:
        session = client.user("m", "someone's own id")
        session.prepare(inputs)
        session.score(candidates)
        session.release()
        with pytest.raises(UserGone):
            session.score(candidates)
    assert "someone's" not in log.read_text()
    assert "someone's" not in live.get("/metrics")[2].decode()


def test_users_of_two_keys_do_not_meet_and_changes_of_one_follow_one_another(tmp_path):
    write_ranked(tmp_path / "repository")
    keyed = Keyed(tmp_path)
    for name in ("one", "two"):
        keyed.add(name, ["predict"])
    options = ("--workers", "2", "--user-state-mb", "8", "--api-keys", str(keyed.path))
    items = {"item": [5, 6, 7]}
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as live, ExitStack() as clients:

        def user(key, scheme="http"):
            client = Client(live.address(scheme), timeout_s=20, key=keyed.secrets[key])
            return clients.enter_context(client).user(MODEL, 7)

        user("one").prepare({"history.item": [1, 2]})
        user("two", "grpc").prepare({"history.item": [3]})
        pairs = [(key, scheme) for key in ("one", "two") for scheme in ("http", "grpc")]
        scores = [user(*each).score(items, output="score") for each in pairs]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
        np.testing.assert_allclose(scores[2], scores[3], rtol=1e-6)
        assert not np.allclose(scores[0], scores[2])
        user("one", "grpc").release()
        with pytest.raises(UserGone):
            user("one").score(items)
        np.testing.assert_allclose(user("two").score(items, output="score"), scores[2], rtol=1e-6)
        changes_of_two_workers_follow_one_another(user)


def changes_of_two_workers_follow_one_another(user):
    """No change of a user by several clients at once is lost, and the user is never gone meanwhile."""
    versions, errors = [], []

    def append(session, number):
        for turn in range(CHANGES):
            # An item of its own: a change that leaves the history as it is has no version.
            try:
                versions.append(session.append({"history.item": [number * CHANGES + turn]}).sequence_version)
            except Exception as error:
                errors.append(error)

    user("one").prepare({"history.item": []})
    # Each on a connection of its own, so by either worker.
    threads = [threading.Thread(target=append, args=(user("one"), number)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(versions)) == CLIENTS * CHANGES


@pytest.mark.kills
def test_users_outlive_a_killed_worker_whole_or_not_at_all(tmp_path):
    write_ranked(tmp_path / "repository")
    options, items = ("--workers", "2", "--user-state-mb", "8"), {"item": [5, 6, 7]}
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as live:

        def ask(act):
            # On a connection of its own, so by either worker.
            with Client(live.address(), timeout_s=20) as client:
                return act(client)

        histories = {user: [user % 9] for user in range(1, 21)}
        for user, history in histories.items():
            ask(lambda client, u=user, h=history: client.user(MODEL, u).prepare({"history.item": h}))
        found = 0
        for turn in range(4):
            victim = workers(live)[turn % 2]["pid"]
            os.kill(victim, signal.SIGKILL)
            until(lambda pid=victim, n=turn % 2: replaced(live, n, pid))
            for user, history in histories.items():
                event = {"history.item": [turn]}
                try:
                    ask(lambda client, u=user, e=event: client.user(MODEL, u).append(e))
                except UserGone:
                    history[:] = [turn]
                    ask(lambda client, u=user, e=event: client.user(MODEL, u).prepare(e))
                else:
                    history.append(turn)
                    found += 1
                scores = ask(lambda client, u=user: client.user(MODEL, u).score(items, output="score"))
                whole = {"history.item": Ragged.of([history])}
                expected = ask(lambda client, h=whole: client.rank(MODEL, h, items, output="score"))
                np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
        assert found > 40
