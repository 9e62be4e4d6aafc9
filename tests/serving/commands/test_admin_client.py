import pytest

from processor.errors import FreshetError, NotReady
from tests.serving.commands.running import admin_port, run


@pytest.fixture
def admin():
    with admin_port() as there:
        yield there


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
    with pytest.raises(NotReady, match=r"^admin: no answer from http://127\.0\.0\.1:1: Connection refused; is freshet"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "http://127.0.0.1:1")
    with pytest.raises(FreshetError, match="http:// or https://"):
        run("delta", "rollback", "ctr", "3.1", "--admin", "file:///etc")
