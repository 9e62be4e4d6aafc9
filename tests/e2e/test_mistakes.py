"""Mistakes are answered by one clear line: those of `mistakes.py`, made in this process, against a server in it."""

from __future__ import annotations

import fcntl
import http.client
import io
import json
import re
import shlex
import sys
import threading
from contextlib import ExitStack, redirect_stderr, redirect_stdout

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from onnx import TensorProto, helper

from freshet_serving.serving.commands.admin_client import AdminClient
from freshet_serving.serving.commands.cli import main
from freshet_serving.serving.process_layout import Layout
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.server import Server
from tests.e2e.mistakes import CSV, MISTAKES, TRAIN, Command, Request, body_of
from tests.support.packages import write_package
from tests.support.waiting import until

LEAST = 68
"""So many of the seventy are to be answered."""
TREES = {
    "nodes_falsenodeids": [0], "nodes_featureids": [0], "nodes_modes": ["LEAF"], "nodes_nodeids": [0],
    "nodes_treeids": [0], "nodes_truenodeids": [0], "nodes_values": [0.0], "class_ids": [0], "class_nodeids": [0],
    "class_treeids": [0], "class_weights": [1.0], "classlabels_int64s": [0, 1],
}  # fmt: skip
FOREIGN = re.compile(r"Traceback|Extra inputs|Input should be|Field required|Usage:|\n[╭│╰]")
"""What others' libraries say, in words that are not ours."""


def trees(domain="my.company"):
    """A classifier of decision trees, of an operator that ONNX Runtime lacks."""
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "probabilities"], domain=domain, **TREES)
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])]
    ids = [helper.make_opsetid(name, number) for name, number in (("", 17), (domain, 1))]
    return helper.make_model(helper.make_graph([node], "trees", inputs, outputs), opset_imports=ids, ir_version=8)


def apart():
    """A product whose weights are in a file that was not copied."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], bytes(24), raw=True)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="weights.bin")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "apart",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a training file and its table, models that are refused, and a repository of the model `small`."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "train.toml").write_text(TRAIN)
    pa.parquet.write_table(pa.csv.read_csv(io.BytesIO(CSV.encode())), folder / "clicks.parquet")
    write_package(folder / "repository")
    (folder / "own.onnx").write_bytes(trees().SerializeToString())
    (folder / "apart.onnx").write_bytes(apart().SerializeToString())
    return folder


@pytest.fixture(scope="module")
def ports(workspace):
    """A server of the repository, in this process: its ports by name."""
    config = ServeConfig(str(workspace / "repository"), http_port=0, grpc_port=0, admin_port=0, workers=1)
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    admin = AdminClient(f"http://127.0.0.1:{server.admin_address[1]}")
    until(lambda: admin.get("/admin/health")["ready"])
    yield {
        "data": server.http_address[1],
        "admin": server.admin_address[1],
        "grpc": int(server.grpc_address.rpartition(":")[2]),
    }
    server.stop()
    thread.join()


def typed(mistake, workspace, ports, monkeypatch):
    """The exit code of a command and what it printed on standard error."""
    for name, content in mistake.files.items():
        path = workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, value in mistake.env.items():
        monkeypatch.setenv(name, value)
    line = mistake.line.replace("{admin}", f"http://127.0.0.1:{ports['admin']}")
    monkeypatch.setattr(sys, "argv", ["freshet", *shlex.split(line)])
    code, errors = 0, io.StringIO()
    with ExitStack() as stack:
        if mistake.trainer:
            path = workspace / "out" / ".checkpoints" / "tiny" / "trainer.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(path, "w")), fcntl.LOCK_EX)
        stack.enter_context(redirect_stderr(errors))
        stack.enter_context(redirect_stdout(io.StringIO()))
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception as error:
            return 1, f"Traceback: {error!r}"
    return code, errors.getvalue()


def asked(mistake, ports):
    """The status of a reply and its error."""
    connection = http.client.HTTPConnection("127.0.0.1", ports[mistake.port], timeout=30)
    try:
        connection.request(mistake.method, mistake.path, body_of(mistake), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())["error"]
    except (http.client.HTTPException, OSError, ValueError, KeyError) as error:
        return 0, f"no answer: {error!r}"
    finally:
        connection.close()


def wrong(mistake, workspace, ports, monkeypatch):
    """Why a mistake is not answered by one clear line; "" where it is."""
    if isinstance(mistake, Request):
        status, told = asked(mistake, ports)
        sound = 400 <= status < 500 and "\n" not in told
    else:
        code, told = typed(mistake, workspace, ports, monkeypatch)
        sound = code == 2 and told.startswith("freshet: ") and told.count("\n") == 1 and told.endswith("\n")
    expected = [part.replace("{http}", str(ports["data"])) for part in mistake.expected]
    missing = [part for part in expected if part not in told]
    if sound and not missing and not FOREIGN.search(told) and len(told) <= 400:
        return ""
    return f"{mistake.name}: without {missing}: {told[:600]}"


def test_seventy_mistakes_have_different_names():
    assert len(MISTAKES) == len({mistake.name for mistake in MISTAKES}) == 70
    assert all(isinstance(mistake, Command | Request) and mistake.expected for mistake in MISTAKES)


@pytest.mark.e2e
@pytest.mark.tensorflow
def test_mistake_gives_one_line_with_cause_and_advice(workspace, ports, monkeypatch, capsys):
    def starts(*arguments):
        raise AssertionError("it would start")

    monkeypatch.chdir(workspace)
    monkeypatch.setattr(Layout, "here", starts)
    monkeypatch.setenv("COLUMNS", "80")
    unanswered = []
    for mistake in MISTAKES:
        with monkeypatch.context() as patch:
            why = wrong(mistake, workspace, ports, patch)
        unanswered += [why] * bool(why)
    with capsys.disabled():
        print(f"\n{len(MISTAKES) - len(unanswered)} of {len(MISTAKES)} mistakes are answered", *unanswered, sep="\n  ")
    assert len(MISTAKES) - len(unanswered) >= LEAST, unanswered
