import pytest

from tests.serving.commands.running import admin_port, run


@pytest.fixture
def admin():
    with admin_port() as there:
        yield there


def test_a_delta_is_applied_and_rolled_back_on_a_running_server(admin, tmp_path):
    address, processor = admin
    file = tmp_path / "18.safetensors"
    file.write_bytes(b"delta")
    where = ("--admin", address, "--admin-token", "t")
    assert run("delta", "apply", "ctr", str(file), *where) == "ctr 3.18: 5 rows, 1 removed, 2.5 ms\n"
    assert "3.18" in run("delta", "apply", "ctr", "ctr/3/deltas/18.safetensors", "--on-server", *where)
    reached, note = run("delta", "rollback", "ctr", "3.16", "--reason", "late labels", *where).splitlines()
    assert reached == "ctr 3.16"
    assert "publishes 3.18" in note
    assert [c[0] for c in processor.calls] == ["apply_delta", "apply_delta", "rollback"]
