import asyncio

import pytest

from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.serving.commands.admin_client import TOKEN_VARIABLE, AdminClient
from freshet_serving.serving.extensions.fleet.fleet_polling import AdminAddress, poll_all
from tests.serving.access.certified import Authority
from tests.serving.commands.running import run
from tests.serving.fakes import FakeProcessor
from tests.serving.test_server import running
from tests.support.waiting import until


def test_server_error_message_reaches_the_user(admin, tmp_path, monkeypatch):
    address, _ = admin
    file = tmp_path / "x"
    file.write_bytes(b"conflict")
    with pytest.raises(FreshetError, match="continues step 9"):
        run("delta", "apply", "ctr", str(file), "--admin", address)
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(FreshetError, match="bearer token"):
        run("delta", "rollback", "ctr", "3.1", "--admin", address)
    with pytest.raises(FreshetError, match="No such file"):
        run("delta", "apply", "ctr", str(tmp_path / "none"), "--admin", address)


def test_unresponsive_server_gives_a_one_line_error():
    with pytest.raises(NotReady, match=r"^admin: no answer from http://127\.0\.0\.1:1: Connection refused; is freshet"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "http://127.0.0.1:1")
    with pytest.raises(FreshetError, match="http:// or https://"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "file:///etc")


def test_tls_checks_the_server_and_sends_a_client_certificate(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    chain, key = map(str, authority.write())
    options = {"tls_cert": chain, "tls_key": key, "tls_client_ca": str(authority.path), "admin_token": "t"}
    certificate, own = authority.write("client")
    with running(lambda config: FakeProcessor(), **options) as (server, _, _):
        address = f"https://localhost:{server.admin_address[1]}"
        with pytest.raises(NotReady, match="certificate verify failed"):
            AdminClient(address, "t").get("/admin/models")
        for name, path in (("CA", authority.path), ("CERT", certificate), ("KEY", own)):
            monkeypatch.setenv(f"FRESHET_ADMIN_{name}", str(path))
        until(lambda: AdminClient(address, "t").get("/admin/health")["ready"])
        assert "ctr" in AdminClient(address, "t").get("/admin/models")["models"]
        replica = AdminAddress.parse(address)
        (said,) = asyncio.run(poll_all([replica], "t", 30.0))
        assert not said.problem.startswith("unreachable")
