import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from processor.errors import FreshetError, NotFound, NotReady
from processor.package.delta import Delta, TableDelta, write_delta
from processor.package.manifest import Feature, Input, Manifest, Output, TableEntry
from processor.package.version import VersionWriter
from serving.commands.admin_client import AdminClient
from serving.commands.cli import app
from serving.serve_config import ServeConfig
from serving.server import Server
from tests.serving.fakes import FakeProcessor


def run(*arguments):
    """What a command printed; raises the FreshetError that main() would print as one line."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def repository(tmp_path):
    """A model `ctr` with versions 1 and 3, and two deltas of version 3, the second of them broken."""
    manifest = Manifest(
        "ctr",
        1,
        "deepfm",
        1.7e9,
        [Input("user", "int64"), Input("tags", "string", ragged=True), Input("packed", "float32", 2)],
        [
            Feature("user", "id", "user", table="user", width=4),
            Feature("tags", "strings", "tags", table="user", offset=4, width=4),
            Feature("a", "float", "packed", 0, offset=8),
            Feature("b", "float", "packed", 1, offset=9),
        ],
        [TableEntry("user", 4, 10)],
        [Output("score", 1)],
        10,
        {},
        {},
    )
    for version in (1, 3):
        with VersionWriter(tmp_path, "ctr", version) as writer:
            writer.tensors("dense.safetensors", {"x": np.zeros(3, np.float32)})
            writer.commit(replace(manifest, version=version))
    keys = np.arange(5, dtype=np.int64)
    changes = TableDelta(keys, np.ones((5, 4), np.float32), np.array([9], np.int64))
    deltas = tmp_path / "ctr" / "3" / "deltas"
    write_delta(deltas / "1.safetensors", Delta("ctr", 3, 1, 0, {"user": changes}, published_at=1.7e9, events=2000))
    (deltas / "2.safetensors").write_bytes(b"broken")
    return tmp_path


@pytest.fixture
def admin():
    """The address of a running server's admin port, and its fake processor."""
    processor = FakeProcessor()
    server = Server(
        ServeConfig("fake", http_port=0, admin_port=0, admin_token="t"),
        open_processor=lambda config: processor,
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    address = f"http://127.0.0.1:{server.admin_address[1]}"
    client = AdminClient(address, "t")
    while not client.get("/admin/health")["ready"]:
        pass
    yield address, processor
    server.stop()
    thread.join()


def test_inspect_describes_the_newest_version(repository):
    text = run("inspect", "--repository", str(repository), "--verify")
    assert "ctr version 3 of 1, 3" in text
    assert "tags: string [n, any]" in text
    assert "packed: float32 [n, 2]" in text
    assert "user: 10 rows of 4 float32" in text
    assert "2 deltas, the newest 3.2" in text
    assert "every file matches its checksum" in text


def test_inspect_takes_a_model_and_a_version(repository):
    assert "ctr version 1" in run("inspect", "--repository", str(repository), "ctr", "--version", "1")
    with pytest.raises(NotFound, match="'ctr' version 2 is not in the repository"):
        run("inspect", "--repository", str(repository), "ctr", "--version", "2")


def test_an_empty_repository_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no model"):
        run("inspect", "--repository", str(tmp_path))


def test_deltas_are_listed_and_a_broken_one_is_named(repository):
    text = run("delta", "list", "--repository", str(repository), "ctr")
    assert "2,000" in text
    assert "3.1" in text
    assert "3.2" in text
    assert "2023-11-14" in text


def test_a_delta_is_applied_and_rolled_back_on_a_running_server(admin, tmp_path):
    address, processor = admin
    file = tmp_path / "18.safetensors"
    file.write_bytes(b"delta")
    where = ("--admin", address, "--admin-token", "t")
    assert run("delta", "apply", "ctr", str(file), *where) == "ctr 3.18: 5 rows, 1 removed, 2.5 ms\n"
    assert "3.18" in run("delta", "apply", "ctr", "ctr/3/deltas/18.safetensors", "--on-server", *where)
    assert run("delta", "rollback", "ctr", "3.16", *where) == "ctr 3.16\n"
    assert [c[0] for c in processor.calls] == ["apply_delta", "apply_delta", "rollback"]


def test_the_servers_own_message_reaches_the_user(admin, tmp_path):
    address, _ = admin
    file = tmp_path / "x"
    file.write_bytes(b"conflict")
    with pytest.raises(FreshetError, match="continues step 9"):
        run("delta", "apply", "ctr", str(file), "--admin", address, "--admin-token", "t")
    with pytest.raises(FreshetError, match="bearer token"):
        run("delta", "rollback", "ctr", "3.1", "--admin", address)
    with pytest.raises(FreshetError, match="No such file"):
        run("delta", "apply", "ctr", str(tmp_path / "none"), "--admin", address)


def test_a_server_that_does_not_answer_is_one_line():
    with pytest.raises(NotReady, match=r"no answer from http://127\.0\.0\.1:1"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "http://127.0.0.1:1")
    with pytest.raises(FreshetError, match="http:// or https://"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "file:///etc")


def test_a_mistake_on_the_command_line_is_one_line_and_code_2():
    command = [sys.executable, "-m", "freshet_serving", "serve", "--repository", "r", "--workers", "-1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "freshet: workers: 0 (one per core) to 256 wanted, got -1\n"


def test_serving_imports_nothing_of_training():
    code = (
        "import sys, serving.commands.cli, serving.server, serving.http.app, serving.admin.api; "
        "print([m for m in ('tensorflow', 'keras', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


def test_compile_says_what_serves_each_batch_size_and_what_was_not_compiled(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="compiling needs the train extra")
    from models.bench import write_model

    monkeypatch.setattr("models.bench.HIDDEN", (8, 4))
    monkeypatch.setitem(sys.modules, "openvino", None)
    write_model(tmp_path, 10)
    chosen = (
        "compile",
        "bench",
        "--repository",
        str(tmp_path),
        "--backends",
        "onnxruntime,openvino",
        "--buckets",
        "1,4",
    )
    lines = run(*chosen).splitlines()
    assert lines[0].startswith("backend openvino: the library openvino is not installed: pip install freshet[openvino]")
    assert lines[1].startswith("bench 1: 1: onnxruntime ")
    table = run(*chosen, "--report")
    assert "bench 1: us a run, one thread" in table
    assert "onnxruntime" in table
    assert "not compiled: backend openvino" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no version of a model"),
        (("m", "--buckets", "1;2"), "--buckets: batch sizes separated by commas wanted, got '1;2'"),
        (("m", "--buckets", "1", "--sample", "s"), "--buckets and --sample: one of them wanted"),
    ],
)
def test_compile_refuses_what_it_cannot_read(arguments, message):
    with pytest.raises(FreshetError, match=message):
        run("compile", *arguments)
