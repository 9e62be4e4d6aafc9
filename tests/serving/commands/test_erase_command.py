"""`freshet erase`: a request in the trainer's folder, and what it does not reach."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import Erasures
from freshet_serving.serving.commands.admin_client import AdminClient
from tests.serving.commands.running import run


def test_request_lies_in_the_folder_of_the_trainer(tmp_path):
    (tmp_path / ".checkpoints" / "shop").mkdir(parents=True)
    told = run("erase", "shop", "ann", "--repository", str(tmp_path))
    assert told.startswith("shop: the trainer forgets the user with its next checkpoint; not reached: the log")
    assert len(Erasures.of_model(tmp_path, "shop").asked()) == 1


def test_folder_without_a_trainer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected the folder of the trainer of 'shop'"):
        run("erase", "shop", "ann", "--repository", str(tmp_path))


def test_neither_trainer_nor_server_is_refused(monkeypatch):
    monkeypatch.delenv("FRESHET_REPOSITORY", raising=False)
    with pytest.raises(BadInput, match="expected the trainer's folder, or --server URL, got neither"):
        run("erase", "shop", "ann")


@pytest.fixture
def server(monkeypatch):
    """A server that answers erasures: its calls, and its reply, which a test may change."""
    asked, erased = [], {"kept_requests": 2, "user_states": 1}
    reply = {"erased": erased, "trainer": "asked", "not_reached": ["other servers", "backups"]}

    def send(client, method, path, document):
        asked.append((method, path, document))
        return reply

    monkeypatch.setattr(AdminClient, "send_json", send)
    return asked, reply


def test_server_says_what_it_has_erased(monkeypatch, server):
    asked, _ = server
    monkeypatch.delenv("FRESHET_REPOSITORY", raising=False)
    told = run("erase", "shop", "ann", "--server", "http://127.0.0.1:1", "--input", "user").splitlines()
    assert asked == [("POST", "/admin/models/shop/erase", {"key": "ann", "input": "user"})]
    assert told == [
        "shop: the server has erased 2 kept requests, 1 user states;"
        " its trainer forgets the user with its next checkpoint",
        "not reached: other servers",
        "not reached: backups",
    ]


@pytest.mark.parametrize("repository", ["s3://bucket/models", ""])
def test_server_is_asked_where_the_variable_names_no_trainer(monkeypatch, server, tmp_path, repository):
    asked, reply = server
    reply.update(trainer="", not_reached=["a trainer's histories"])
    monkeypatch.setenv("FRESHET_REPOSITORY", repository or str(tmp_path))
    told = run("erase", "shop", "ann", "--server", "http://127.0.0.1:1").splitlines()
    assert len(asked) == 1
    assert told == ["shop: the server has erased 2 kept requests, 1 user states", "not reached: a trainer's histories"]


def test_folder_without_a_trainer_is_an_error_after_the_server_was_asked(server, tmp_path):
    asked, reply = server
    for repository, got in (("s3://bucket/models", "got a bucket; name publish.trainer_folder"), (tmp_path, "got one")):
        arguments = ("erase", "shop", "ann", "--repository", str(repository))
        with pytest.raises(BadInput, match=got):
            run(*arguments)
        assert asked == []
        reply["trainer"] = ""
        with pytest.raises(BadInput, match=f"expected the folder of the trainer of 'shop', .*{got}"):
            run(*arguments, "--server", "http://127.0.0.1:1")
        reply["trainer"] = "asked"
        assert run(*arguments, "--server", "http://127.0.0.1:1").startswith("shop: the server has erased")
        assert len(asked) == 2
        asked.clear()
