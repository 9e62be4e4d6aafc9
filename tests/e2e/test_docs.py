"""The curl examples of docs/reference/http.md, run as they stand against a live server with the page's model."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.manifest_entries import Feature, Input, TableEntry
from freshet_serving.processor.repository.version import DENSE, table_file
from freshet_serving.processor.repository.version_writer import VersionWriter
from freshet_serving.processor.tables.table import packed
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_artefact, make_weights, manifest, write_executables

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
DIM = 5


def examples():
    """(command, what the page says it prints) of every example that asks the data port."""
    found = []
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text(), re.S):
        # A command ends where its quotes are closed; the line behind it is the reply.
        for command, reply in re.findall(r"(curl -s localhost:8501[^']*?(?:'[^']*')?)\n(\{.*\})", block):
            found.append((command, reply))
    return found


def write_bench(repository):
    """Model `bench`: ids int64 [n, 2] and floats float32 [n, 2], version 3."""
    with VersionWriter(repository, "bench", 3) as writer:
        writer.tensors(table_file("ids"), packed(np.arange(20), np.ones((20, DIM), np.float32), "float32"))
        writer.tensors(DENSE, make_weights(0))
        write_executables(writer, make_artefact())
        made = manifest(3, model="bench")
        made.inputs[:] = [Input("ids", "int64", 2), Input("floats", "float32", 2)]
        made.features[:] = [
            *(Feature(f"id{j}", "id", "ids", j, table="ids", offset=DIM * j, width=DIM) for j in range(2)),
            *(Feature(f"f{j}", "float", "floats", j, offset=2 * DIM + j) for j in range(2)),
        ]
        made.tables[:] = [TableEntry("ids", DIM, 20)]
        writer.commit(made)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    write_bench(folder / "repository")
    with LiveServer(folder / "repository", *ALONE, log=folder / "serve.log") as server:
        yield server


def shaped(document):
    """A document with every fraction the same: scores are the model's affair."""
    if isinstance(document, dict):
        return {key: shaped(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shaped(value) for value in document]
    return 0.5 if isinstance(document, float) else document


@pytest.mark.parametrize(("command", "reply"), examples(), ids=lambda text: text.split("\n")[0][:60])
def test_documented_example_prints_what_the_page_says(live, command, reply):
    command = command.replace("localhost:8501", f"127.0.0.1:{live.http_port}")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert shaped(json.loads(done.stdout)) == shaped(json.loads(reply))


def test_page_has_examples_of_every_request_form():
    forms = (":predict", ":regress", "/infer")
    assert all(any(form in command for command, _ in examples()) for form in forms)
