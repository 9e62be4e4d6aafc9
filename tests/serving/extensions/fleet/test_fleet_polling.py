"""Replicas that answer, and such as hang, drip, pour, lie or are not there: each costs what it may, and no other."""

import asyncio
import contextlib
import json
import time

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.extensions.fleet import fleet_polling
from freshet_serving.serving.extensions.fleet.fleet_polling import AdminAddress, check_token, poll_all, resolve
from tests.serving.extensions.fleet.test_fleet_comparison import served

GOOD = json.dumps({"ready": True, "models": {"ctr": {"served": {"3": served()}}}}).encode()


def reply(body, status=200):
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n\r\n" % status + body


@contextlib.asynccontextmanager
async def replicas(*answers):
    """Addresses of servers that each answer with bytes, or with a coroutine of (reader, writer)."""
    async with contextlib.AsyncExitStack() as stack:
        found, handlers = [], []
        stack.push_async_callback(lambda: asyncio.gather(*handlers, return_exceptions=True))
        for answer in answers:

            async def handle(reader, writer, answer=answer):
                handlers.append(asyncio.current_task())
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    if callable(answer):
                        await answer(reader, writer)
                    else:
                        await reader.readuntil(b"\r\n\r\n")
                        writer.write(answer)
                        writer.write_eof()
                        await reader.read()
                writer.transport.abort()

            server = await stack.enter_async_context(await asyncio.start_server(handle, "127.0.0.1", 0))
            found.append(AdminAddress.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        yield found


def asked(*answers, timeout_s=0.4, token="", model=None):
    async def ask():
        async with replicas(*answers) as there:
            return await poll_all(there, token, timeout_s, model)

    return asyncio.run(ask())


def test_every_replica_is_polled_and_listed_in_order():
    said = asked(reply(GOOD), reply(GOOD.replace(b"true", b"false")))
    assert [(each.ready, each.problem, list(each.versions)) for each in said] == [
        (True, "", [("ctr", 3)]),
        (False, "", [("ctr", 3)]),
    ]


async def hang(reader, writer):
    await reader.read()


async def drip(reader, writer):
    writer.write(reply(b""))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def pour(reader, writer):
    writer.write(reply(b""))
    while True:
        writer.write(b" " * 65536)
        await writer.drain()


async def pour_head(reader, writer):
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (hang, "unreachable: no answer within 0.4 s"),
        (drip, "unreachable: no answer within 0.4 s"),
        (pour, "no report: expected at most 4194304 bytes, got more"),
        (pour_head, "no report: not an HTTP reply"),
        (b"", "no report: not an HTTP reply"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no report: not an HTTP reply"),
        (b"HTTP/1.1 abc\r\n\r\n", "no report: not an HTTP reply"),
        (reply(b"<html>"), "no report: expected JSON"),
        (reply(b"[" * 100_000), "no report: expected JSON"),
        (reply(b"9" * 10_000), "no report: expected JSON"),
        (reply(b"{}"), "no report: ready: expected bool, got NoneType"),
        (reply(b'{"error": "server: models are loading"}', 503), "answered 503: server: models are loading"),
        (reply(b'{"error": "\\u001b[2J"}', 500), "answered 500: \\x1b[2J"),
        (reply(b"[]", 302), "answered 302"),
    ],
)
def test_broken_or_hostile_replica_does_not_affect_the_others(answer, problem, monkeypatch):
    began_s = time.monotonic()
    said = asked(reply(GOOD), answer, reply(GOOD))
    assert [each.problem for each in said] == ["", problem, ""]
    assert time.monotonic() - began_s < 5


def test_refused_connection_is_unreachable():
    async def ask():
        async with replicas(b"") as (gone,):
            pass
        return await poll_all([gone], "", 1.0)

    assert asyncio.run(ask())[0].problem == "unreachable: Connection refused"


def test_token_and_host_name_are_sent():
    heard = []

    async def listen(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply(GOOD))
        writer.write_eof()
        await reader.read()

    asked(listen, token="secret")
    head = heard[0].decode().split("\r\n")
    assert head[0] == "GET /admin/models HTTP/1.0"
    assert "Authorization: Bearer secret" in head
    assert head[1].startswith("Host: 127.0.0.1:")


def test_number_of_concurrent_and_total_polls_is_limited(monkeypatch):
    monkeypatch.setattr(fleet_polling, "AT_ONCE", 2)
    at_work, most = [0], [0]

    async def count(reader, writer):
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0)
        at_work[0] -= 1
        writer.write(reply(GOOD))
        writer.write_eof()
        await reader.read()

    assert not any(each.problem for each in asked(*[count] * 6, timeout_s=5.0))
    assert most[0] <= 2
    with pytest.raises(BadInput, match="expected at most 1024 replicas, got 1025"):
        asyncio.run(poll_all([AdminAddress.parse("a:1")] * 1025, "", 1.0))


def test_name_resolves_to_all_its_addresses():
    async def both(host, port, **options):
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2", "fe80::1")]

    async def look():
        asyncio.get_running_loop().getaddrinfo = both
        return await resolve("freshet.models.svc:8502", 1.0)

    assert [each.where for each in asyncio.run(look())] == [
        "http://10.0.0.1:8502",
        "http://10.0.0.2:8502",
        "http://[fe80::1]:8502",
    ]


def test_unresolvable_name_gives_no_address():
    async def look():
        async def nobody(host, port, **options):
            raise OSError("no such name")

        asyncio.get_running_loop().getaddrinfo = nobody
        return await resolve("freshet.models.svc:8502", 1.0)

    assert asyncio.run(look()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:0",
        "host:99999",
        "ftp://host:1",
        "http://host:1/path",
        "http://u:p@host:1",
        "http://ho st:1",
        "a\nb:1",
    ],
)
def test_invalid_admin_address_is_refused(text):
    with pytest.raises(BadInput, match="HOST:PORT of an admin port"):
        AdminAddress.parse(text)


def test_addresses_with_or_without_scheme_and_ipv6_are_parsed():
    assert AdminAddress.parse("host:8502").port == 8502
    assert AdminAddress.parse("https://host:8502/").secure
    assert AdminAddress.parse("http://[::1]:8502").authority == "[::1]:8502"


def test_token_with_a_line_break_is_refused():
    with pytest.raises(BadInput, match="expected printable ASCII"):
        check_token("a\r\nX: y")
