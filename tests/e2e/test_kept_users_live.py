"""Users that two worker processes keep and change at once: no change is lost, and no user is gone meanwhile."""

import threading

import pytest

from freshet_serving import Client
from tests.e2e.servers import LiveServer
from tests.support.ranked import MODEL, write_ranked

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CLIENTS, CHANGES = 6, 60


def test_changes_of_a_user_by_two_workers_follow_one_another(tmp_path):
    write_ranked(tmp_path / "repository")
    options = ("--workers", "2", "--user-state-mb", "8")
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as live:
        address, versions, errors = f"http://127.0.0.1:{live.http_port}", [], []

        def append(number):
            # Each on a connection of its own, so by either worker.
            with Client(address, timeout_s=10) as client:
                user = client.user(MODEL, "one")
                for turn in range(CHANGES):
                    # An item of its own: a change that leaves the history as it is has no version.
                    item = number * CHANGES + turn
                    try:
                        versions.append(user.append({"history.item": [item]}).sequence_version)
                    except Exception as error:
                        errors.append(error)

        with Client(address) as client:
            client.user(MODEL, "one").prepare({"history.item": []})
        threads = [threading.Thread(target=append, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert len(set(versions)) == CLIENTS * CHANGES
