"""The examples in docstrings of the public API run as they stand, against a repository and a server that are there."""

import doctest

import numpy as np
import pytest

import freshet_serving
from tests.e2e.servers import ALONE, LiveServer
from tests.freshet_serving.test_facade import ROOT
from tests.support.packages import write_package

ADDRESS = "http://127.0.0.1:8080"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_package(tmp_path / "repository", model="ctr")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failures(name, address=ADDRESS, **more):
    """Return what the runner prints of failing examples in a public class's docstring, which has some."""
    names = {public: getattr(freshet_serving, public) for public in freshet_serving.__all__} | {"np": np} | more
    text = names[name].__doc__.replace(ADDRESS, address)
    examples = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert examples.examples
    printed = []
    doctest.DocTestRunner().run(examples, out=printed.append)
    return "".join(printed)


@pytest.mark.parametrize("name", ["Publisher", "Processor", "Dataset"])
def test_example_runs_in_a_repositorys_folder(name, folder):
    assert failures(name) == ""


def test_client_example_runs_against_a_server(folder):
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as server:
        assert failures("Client", f"http://127.0.0.1:{server.http_port}") == ""


def test_architecture_example_builds_a_network():
    from freshet_serving.compiler.frameworks import keras

    assert failures("Arch", keras=keras) == ""
