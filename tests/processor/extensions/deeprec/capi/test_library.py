"""The shared library, built and called from C and from Go, each in a process of its own."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from freshet_serving.processor.extensions.deeprec import capi
from freshet_serving.processor.extensions.deeprec import codec as eas
from tests.processor.extensions.deeprec.capi.test_embedded import USERS, predict_request
from tests.support.packages import write_package

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("cffi") is None, reason="needs cffi"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(not sysconfig.get_config_var("Py_ENABLE_SHARED"), reason="needs a shared libpython"),
]
EXAMPLES = Path(capi.__file__).parent
# cffi loads its backend before the library's first line runs: not that of the system's Python, which may be another's.
PACKAGES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The library, its header, a repository and a request."""
    folder = tmp_path_factory.mktemp("capi")
    subprocess.run(
        [sys.executable, "-m", "freshet_serving.processor.capi", str(folder / "libfreshet.so")],
        check=True,
        capture_output=True,
    )
    write_package(folder / "repository", users=USERS)
    (folder / "request").write_bytes(predict_request())
    return folder


def answered(folder, command, env=None):
    libraries = os.pathsep.join([str(folder), sysconfig.get_config_var("LIBDIR")])
    done = subprocess.run(
        [*command, json.dumps({"repository": str(folder / "repository")}), "request", "reply"],
        cwd=folder,
        env={**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": PACKAGES, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return eas.Response.FromString((folder / "reply").read_bytes()).outputs["score"]


def test_example_in_c_gets_scores(folder):
    compiling = ["cc", str(EXAMPLES / "example.c"), "-I.", "-o", "example", "-L.", "-lfreshet"]
    linking = ["-Wl,-rpath-link," + sysconfig.get_config_var("LIBDIR"), "-Wl,--allow-shlib-undefined"]
    subprocess.run([*compiling, *linking], cwd=folder, check=True)
    assert list(answered(folder, ["./example"]).array_shape.dim) == [3, 1]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_example_in_go_gets_scores(folder):
    env = {
        "CGO_CFLAGS": f"-I{folder}",
        "CGO_LDFLAGS": f"-L{folder} -lfreshet -Wl,--allow-shlib-undefined",
        "GOCACHE": str(folder / "go"),
        "GOFLAGS": "-mod=mod",
        "GO111MODULE": "off",
    }
    source = shutil.copy(EXAMPLES / "example.go", folder)
    subprocess.run(["go", "build", "-o", "example-go", source], cwd=folder, check=True, env={**os.environ, **env})
    assert list(answered(folder, ["./example-go"], env).array_shape.dim) == [3, 1]


def test_every_function_of_the_header_is_exported(folder):
    """In a process of its own: the library starts its own interpreter, or finds this one's."""
    program = f"""
import ctypes, json, sys
from tests.processor.extensions.deeprec.capi.test_library import call_all
call_all({str(folder)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def call_all(folder):
    library = ctypes.CDLL(f"{folder}/libfreshet.so")
    library.initialize.restype = ctypes.c_void_p
    state, reply, size = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    model = library.initialize(b"", json.dumps({"repository": f"{folder}/repository"}).encode(), ctypes.byref(state))
    model = ctypes.c_void_p(model)
    assert state.value == 0
    request = Path(folder, "request").read_bytes()

    assert library.process(model, request, len(request), ctypes.byref(reply), ctypes.byref(size)) == 200
    scores = ctypes.string_at(reply, size.value)
    one, nbytes = (ctypes.c_char_p * 1)(request), (ctypes.c_int * 1)(len(request))
    assert library.batch_process(model, one, nbytes, ctypes.byref(reply), ctypes.byref(size)) == 200
    assert ctypes.string_at(reply, size.value) == scores

    requests, lengths = (
        (ctypes.c_char_p * 3)(request, b"\xff", request),
        (ctypes.c_int * 3)(len(request), 1, len(request)),
    )
    replies, sizes, statuses = (ctypes.c_void_p * 3)(), (ctypes.c_int * 3)(), (ctypes.c_int * 3)()
    library.batch_process_n(model, 3, requests, lengths, replies, sizes, statuses)
    assert list(statuses) == [200, 400, 200]
    assert ctypes.string_at(replies[2], sizes[2]) == scores

    assert library.get_serving_model_info(model, ctypes.byref(reply), ctypes.byref(size)) == 200
    assert "small" in json.loads(ctypes.string_at(reply, size.value))["models"]
    library.freshet_close(model)
    assert library.process(model, request, len(request), ctypes.byref(reply), ctypes.byref(size)) == 404

    assert not library.initialize(b"", b"{}", ctypes.byref(state))
    assert state.value == -1
