"""Schemathesis reads the OpenAPI documents of a live server and tries what they say, and what they do not."""

import os
import shutil
import subprocess

import pytest

from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)
# A deadline of a millisecond or two that schemathesis makes up is answered by the documented 504 on a busy machine.
SETTINGS = """\
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
"""
EXAMPLES = os.environ.get("FRESHET_SCHEMA_EXAMPLES", "25")
PROGRAM = os.environ.get("FRESHET_SCHEMATHESIS") or shutil.which("schemathesis")


@pytest.mark.skipif(PROGRAM is None, reason="no schemathesis (make conformance)")
@pytest.mark.parametrize(
    ("port", "options"),
    [
        # The live stream has no end.
        ("admin", ("--checks", ",".join(CHECKS), "--exclude-path-regex", "/live$")),
        # TensorFlow Serving answers 400 to another method, and so do we; the last is protobuf, which is not generated.
        ("data", ("--checks", ",".join(CHECKS[:-1]), "--exclude-path-regex", "processor$|^/api/")),
    ],
)
def test_server_behaves_as_its_openapi_documents_say(port, options, tmp_path):
    write_package(tmp_path / "repository")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with LiveServer(tmp_path / "repository", *ALONE, log=tmp_path / "serve.log") as server:
        if port == "admin":
            document = f"http://127.0.0.1:{server.admin_port}/admin/openapi.json"
        else:
            document = f"http://127.0.0.1:{server.http_port}/openapi.json"
        command = [PROGRAM, "run", document, *options, "--max-examples", EXAMPLES, "--continue-on-failure"]
        done = subprocess.run([*command, "--seed", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-6000:]
