import pytest
from typer.testing import CliRunner

from freshet_serving.processor.errors import BadInput, NotFound, NotReady
from freshet_serving.serving.commands.cli import app
from tests.processor.extensions.remote_rows.fakes import RedisServer, free_ports, needs_redis
from tests.support.packages import write_package


def run(*arguments):
    """What a command printed on stdout; raises the FreshetError that main() would print as one line."""
    result = CliRunner().invoke(app, ["tables", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def repository(tmp_path):
    write_package(tmp_path, users=range(100))
    write_package(tmp_path, version=2, users=range(50))
    return tmp_path


@needs_redis
def test_tables_are_pushed_and_dropped(repository):
    server = RedisServer().start()
    try:
        to = ["--url", server.url]
        assert run("push", "small", "--repository", repository, *to) == (
            "small/2/user: 50 rows pushed\nsmall/2/tag: 3 rows pushed\n"
        )
        assert run("push", "small", "--repository", repository, *to) == "small/2: already complete\n"
        older = ["--version", 1, "--table", "user"]
        assert run("push", "small", "--repository", repository, *older, *to) == "small/1/user: 100 rows pushed\n"
        assert run("drop", "small", *older, *to) == "small/1/user: dropped\n"
        assert run("drop", "small", *older, *to) == "small/1: no tables in the row store\n"
        assert run("drop", "small", "--repository", repository, "--version", 2, *to).count("dropped") == 2
        with server.client() as client:
            assert client.dbsize() == 0
    finally:
        server.close()


def test_failing_push_or_drop_is_reported_in_one_line(repository):
    to = ["--url", f"redis://127.0.0.1:{free_ports(1)[0]}"]
    with pytest.raises(NotReady, match=r"^the row store cannot be reached$"):
        run("push", "small", "--repository", repository, *to)
    with pytest.raises(NotFound, match="model 'small' version 7 is not in the repository"):
        run("push", "small", "--repository", repository, "--version", 7, *to)
    with pytest.raises(BadInput, match="table does not exist in model 'small': 'colour'; expected one of user, tag"):
        run("push", "small", "--repository", repository, "--table", "colour", *to)
    with pytest.raises(BadInput, match="expected --repository or --table"):
        run("drop", "small", "--version", 1, *to)
    with pytest.raises(BadInput, match=r"remote\.url"):
        run("push", "small", "--repository", repository, "--url", "http://127.0.0.1")
