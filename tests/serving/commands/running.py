"""Commands as a shell runs them, and a server for those that talk to one."""

import threading
from contextlib import contextmanager

from typer.testing import CliRunner

from freshet_serving.serving.commands.admin_client import AdminClient
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.server import Server
from tests.serving.fakes import FakeProcessor
from tests.support.waiting import until


def run(*arguments, columns=200, code=0):
    """What a command printed, which ended with `code`; raises the FreshetError that main() would print as one line."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@contextmanager
def admin_port():
    """The address of a running server's admin port, and its fake processor."""
    processor = FakeProcessor()
    server = Server(
        ServeConfig("fake", http_port=0, grpc_port=0, admin_port=0, admin_token="t", workers=1),
        open_processor=lambda config, layout: processor,
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    address = f"http://127.0.0.1:{server.admin_address[1]}"
    client = AdminClient(address, "t")
    until(lambda: client.get("/admin/health")["ready"])
    try:
        yield address, processor
    finally:
        server.stop()
        thread.join()
