"""Ask a real Triton what the suites of the protocol and of Triton's QA expect, and show its answers beside ours.

PyPI's nvidia-pytriton brings Triton's own server, which runs on a CPU. It lies in an environment of its own:

    python3.11 -m venv TRITON && TRITON/bin/pip install nvidia-pytriton
    FRESHET_TRITON_PYTHON=TRITON/bin/python python -m tests.peers.real_triton

That other Python runs this module too, as `serve`: its head imports NumPy, the standard library and the suites alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.servers import free_port
from tests.peers import oip_suite, triton_suite
from tests.peers.expectations import Expectation, same

VERSION = 123
SUITES = {"Open Inference Protocol": oip_suite.SUITE, "Triton QA": triton_suite.SUITE}
SHOWN = 160
ROOT = Path(__file__).parents[2]

Serve = Callable[..., dict[str, Any]]


def _lengths(texts: Any) -> Any:
    return np.vectorize(len, otypes=[np.int32])(texts)


def _models() -> dict[str, tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]], Serve]]:
    """Give peer_models' models in NumPy.

    Returns:
        Model -> its inputs and its outputs, each name -> (type, dimensions after the rows), and what it makes of them.
    """
    f4, f8, i4, text, flag = np.float32, np.float64, np.int32, np.bytes_, np.bool_
    named = {"int_tensor": (i4, 2), "str_tensor": (text, 2), "float_tensor": (f4, 2), "dbl_tensor": (f8,)}
    lists = {"ints": (i4, 2), "lengths": (i4, 2), "floats": (f4, 2), "doubles": (f8,)}
    return {
        "default": ({"x": (f4,)}, {"y": (f4,)}, lambda x: {"y": f4(0.5) * x + f4(2.0)}),
        "half_plus_three": ({"x": (f4,)}, {"y": (f4,)}, lambda x: {"y": f4(0.5) * x + f4(3.0)}),
        "ints": ({"x": (i4, 2)}, {"y": (i4, 2)}, lambda x: {"y": x}),
        "flat_ints": ({"x": (i4,)}, {"y": (i4,)}, lambda x: {"y": x}),
        "doubles": ({"x": (f8,)}, {"y": (f8,)}, lambda x: {"y": x}),
        "floats": ({"x": (f4, 3)}, {"y": (f4, 3)}, lambda x: {"y": x}),
        "strings": ({"x": (text,)}, {"y": (i4,)}, lambda x: {"y": _lengths(x)}),
        "flags": ({"x": (flag,)}, {"y": (flag,)}, lambda x: {"y": ~x}),
        "nested": ({"x": (f4, 3, 2)}, {"y": (f4, 3, 2)}, lambda x: {"y": x}),
        "named": (
            named,
            lists,
            lambda int_tensor, str_tensor, float_tensor, dbl_tensor: {
                "ints": int_tensor,
                "lengths": _lengths(str_tensor),
                "floats": float_tensor,
                "doubles": dbl_tensor,
            },
        ),
    }


def serve_models(http_port: int, grpc_port: int, metrics_port: int, workspace: str) -> None:
    """Serve the models by Triton until standard input ends; runs in the Python that has pytriton.

    Says "ready" on standard output once all are served, and everything else on standard error. pytriton's batching is
    off: with it the first dimension is no part of a model's metadata.

    Args:
        http_port: Of the protocol.
        grpc_port: Of the protocol over gRPC.
        metrics_port: Of the metrics, which Triton has on a port of their own.
        workspace: Folder for pytriton's sockets and models, to be made.
    """
    # Its store of tensors starts a process, which fails where the Python inside Triton is of another patch release.
    os.environ["PYTRITON_NO_TENSORSTORE"] = "1"
    from pytriton.model_config import ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig

    def tensors(columns: dict[str, tuple[Any, ...]]) -> list[Any]:
        return [Tensor(name=name, dtype=dtype, shape=(-1, *dims)) for name, (dtype, *dims) in columns.items()]

    def answers(serve: Serve) -> Callable[[list[Any]], list[dict[str, Any]]]:
        return lambda requests: [serve(**request.data) for request in requests]

    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    addresses = dict.fromkeys(("http_address", "grpc_address", "metrics_address"), "127.0.0.1")
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        # No endpoint is restricted: Triton itself restricts none.
        security = TritonSecurityConfig(restricted_endpoints=[])
        # Models lie in a repository on disk: those that are loaded from memory are in no index.
        policy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
        triton = Triton(
            config=TritonConfig(**ports, **addresses),
            workspace=workspace,
            triton_lifecycle_policy=policy,
            security_config=security,
        )
        for name, (inputs, outputs, serve) in _models().items():
            config = ModelConfig(batching=False)
            triton.bind(name, answers(serve), tensors(inputs), tensors(outputs), model_version=VERSION, config=config)
        try:
            triton.run()
            print("ready", file=said, flush=True)
            sys.stdin.read()
        finally:
            triton.stop()


class RealTriton:
    """A running Triton with these models; a context manager that ends it in an orderly way.

    Where a request ends Triton, it is started again for the next.
    """

    def __init__(self, python: str, folder: Path) -> None:
        """Start it.

        Args:
            python: The Python that has pytriton.
            folder: For its log and what it works with.
        """
        self._python, self._folder = python, folder
        self._start()

    def _start(self) -> None:
        self._http_port, self._metrics_port = free_port(), free_port()
        ports = [str(port) for port in (self._http_port, free_port(), self._metrics_port)]
        log = self._folder / "triton.log"
        workspace = Path(tempfile.mkdtemp(dir=self._folder)) / "workspace"
        command = [self._python, "-m", "tests.peers.real_triton", "serve", *ports, str(workspace)]
        with open(log, "w") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True
            )
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            self._stop()
            raise RuntimeError(f"expected Triton to start, got: {log.read_text()[-4000:]}")

    def _stop(self) -> None:
        self._process.communicate()

    def __enter__(self) -> RealTriton:
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()

    def request(
        self, method: str, path: str, body: Any = None, headers: Any = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask it, on a connection of its own.

        Args:
            method: Verb.
            path: Target; that of the metrics goes to their port.
            body: Bytes; None for none.
            headers: Of the request.

        Returns:
            Status, headers, body.

        Raises:
            EOFError: The request ended Triton.
        """
        port = self._metrics_port if path == "/metrics" else self._http_port
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            try:
                connection.request(method, path, body, headers or {})
                reply = connection.getresponse()
                return reply.status, dict(reply.getheaders()), reply.read()
            except ConnectionError as error:
                self._stop()
                self._start()
                raise EOFError("Triton's process ended") from error


@dataclass(frozen=True)
class BothAnswers:
    """One expectation, and what two servers answered. triton, ours: whether it holds. answer: Triton's."""

    name: str
    triton: bool
    ours: bool
    answer: str


def _ask(expectation: Expectation, server: Any) -> tuple[bool, str]:
    try:
        got = expectation.ask(server)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    return same(expectation.expected, got), json.dumps(got, default=str)[:SHOWN]


def compare(suite: Iterable[Expectation], triton: Any, ours: Any) -> list[BothAnswers]:
    """Ask both servers all of a suite.

    Args:
        suite: Its expectations.
        triton: A real Triton.
        ours: Freshet, with the same models.

    Returns:
        A line for each expectation, in the suite's order.
    """
    lines = []
    for expectation in suite:
        holds, answer = _ask(expectation, triton)
        lines.append(BothAnswers(expectation.name, holds, _ask(expectation, ours)[0], answer))
    return lines


def _tensors(server: Any, model: str) -> list[Any]:
    """A model's inputs and outputs, as a server describes them, whatever their order."""
    document = json.loads(server.request("GET", f"/v2/models/{model}")[2])
    return [sorted((t["name"], t["datatype"], t["shape"]) for t in document[side]) for side in ("inputs", "outputs")]


def main() -> None:
    """Compare a real Triton with Freshet, and print what each expectation meets."""
    from tests.peers.peer_models import serve_peer_models

    python = os.environ.get("FRESHET_TRITON_PYTHON")
    if not python:
        sys.exit("expected FRESHET_TRITON_PYTHON to name the Python that has nvidia-pytriton")
    with (
        tempfile.TemporaryDirectory() as folder,
        RealTriton(python, Path(folder)) as triton,
        serve_peer_models(Path(folder)) as ours,
    ):
        for model in _models():
            assert _tensors(triton, model) == _tensors(ours, model), model
        print("Triton", json.loads(triton.request("GET", "/v2")[2])["version"])
        for suite, expectations in SUITES.items():
            lines = compare(expectations, triton, ours)
            triton_holds, ours_hold = sum(line.triton for line in lines), sum(line.ours for line in lines)
            print(f"\n{suite}: of {len(lines)}, Triton holds {triton_holds}, Freshet {ours_hold}")
            for line in lines:
                told = "Triton holds  " if line.triton else "Triton differs"
                print(f"  {told}  Freshet {'holds  ' if line.ours else 'differs'}  {line.name}")
                if not line.triton:
                    print(f"      {line.answer}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_models(*map(int, sys.argv[2:5]), sys.argv[5])
    else:
        main()
