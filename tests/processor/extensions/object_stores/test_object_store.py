"""Objects of a real S3 server: created once, read, listed by folder; and what an outage is."""

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.extensions.object_stores.object_store import MAX_GET_NBYTES, ObjectContent, open_store
from tests.support.object_server import ObjectServer

PATIENCE_S = 2.0
prefixes = itertools.count()


@pytest.fixture(scope="module")
def server():
    with ObjectServer() as server:
        yield server


@pytest.fixture
def store(server, monkeypatch):
    set_env(monkeypatch, server.env)
    return open_store(server.address(f"test-{next(prefixes)}"), patience_s=PATIENCE_S)


def set_env(monkeypatch, env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)


class Broken:
    """A server that acts as it is told: `reply(method, stored, ...)` gives a status, or None to cut the connection, and
    the body, or what writes the whole reply to a handler."""

    def __init__(self, reply):
        objects = self.objects = {}
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked.append(self.command)
                status, data = reply(self.command, objects, self.path, body, self.headers)
                if callable(data):
                    data(self)
                    return
                if status is None:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.send_header("etag", '"e"')
                self.send_header("last-modified", "Tue, 24 Nov 2026 04:00:00 GMT")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_HEAD = answer

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # connections that were cut
        self.env = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.http.server_port}",
        }
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def test_created_object_is_readable_and_its_name_used_once(store):
    assert store.get("chain/1") is None
    assert store.head("chain/1") is None
    assert store.create("chain/1", b"first")
    assert not store.create("chain/1", b"second")
    assert not store.create("chain/1", b"second, which is longer than the first one")
    found = store.get("chain/1")
    assert found.data == b"first"
    assert store.head("chain/1") == (5, found.etag)


def test_unchanged_object_is_not_sent_again(store):
    store.put("labels.json", b"{}")
    known = store.get("labels.json")
    assert store.get("labels.json", known.etag) == ObjectContent(b"", known.etag, True)
    store.put("labels.json", b'{"a": 1}')
    assert store.get("labels.json", known.etag).data == b'{"a": 1}'


def test_one_of_many_writers_gets_the_name(store):
    with ThreadPoolExecutor(8) as pool:
        for n in range(4):
            won = list(pool.map(lambda who, n=n: store.create(f"record/{n}", b"%d" % who), range(8)))
            assert sum(won) == 1
            assert store.get(f"record/{n}").data == b"%d" % won.index(True)


@pytest.mark.parametrize("nbytes", [0, 1000, 9 << 20])
def test_file_round_trips_through_the_store(store, tmp_path, nbytes):
    content = os.urandom(nbytes)
    (tmp_path / "a").write_bytes(content)
    store.put("rows", tmp_path / "a")
    assert store.download("rows", tmp_path / "b", nbytes)
    assert (tmp_path / "b").read_bytes() == content
    assert store.create("created", tmp_path / "a")
    assert store.head("created").nbytes == nbytes


def test_download_larger_than_expected_is_refused_and_leaves_nothing(store, tmp_path):
    store.put("rows", bytes(1000))
    with pytest.raises(Corrupt, match="rows: expected at most 999 bytes, got 1000"):
        store.download("rows", tmp_path / "rows", 999)
    assert not store.download("none", tmp_path / "none", 999)
    assert list(tmp_path.iterdir()) == []


def test_object_over_the_size_limit_is_not_read_into_memory(store):
    store.put("manifest", bytes(1000))
    with pytest.raises(Corrupt, match="expected at most 100 bytes, got 1000"):
        store.get("manifest", limit=100)
    assert MAX_GET_NBYTES < 1 << 30


def test_folders_are_listed_without_their_contents(store):
    assert store.folder("").folders == []
    for key in ("ctr/1/model.json", "ctr/1/chain/1", "ctr/12/model.json", "ctr/labels.json", "other/1/model.json"):
        store.put(key, b"x")
    assert store.folder("").folders == ["ctr", "other"]
    assert store.folder("ctr").folders == ["1", "12"]
    # A reader requests an object only if a listing shows another etag than its own.
    assert store.folder("ctr").etags == {"labels.json": store.get("ctr/labels.json").etag}
    assert store.folder("ctr/1/").folders == ["chain"]
    assert sorted(store.keys("ctr/1")) == ["ctr/1/chain/1", "ctr/1/model.json"]
    assert [entry[:2] for entry in store.entries("other")] == [("other/1/model.json", 1)]
    store.delete([*store.keys("ctr/1"), "ctr/none"])
    assert store.folder("ctr").folders == ["12"]


def test_names_beyond_one_page_are_listed_and_removed(store, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.object_store.DELETED_AT_ONCE", 100)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put(f"v/{n}/f", b""), range(101)))
    assert len(store.folder("v").folders) == 101
    assert len(list(store.keys("v"))) == 101
    store.delete(store.keys("v"))
    assert list(store.keys("")) == []


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/./b"])
def test_key_with_a_path_escape_is_refused(store, key):
    with pytest.raises(BadInput):
        store.put(key, b"")


def test_missing_bucket_is_reported(store):
    with pytest.raises(BadInput, match=r"^data: bucket 'none' does not exist$"):
        open_store("s3://none/x", "data").get("a")
    with pytest.raises(BadInput, match=r"^repository: bucket 'none' does not exist$"):
        open_store("s3://none/x").folder("")


def every_call(store, tmp_path):
    yield lambda: store.get("a")
    yield lambda: store.head("a")
    yield lambda: store.download("a", tmp_path / "a", 10)
    yield lambda: store.create("b", b"")
    yield lambda: store.put("b", b"")
    yield lambda: store.folder("").folders
    yield lambda: list(store.keys(""))
    yield lambda: store.delete(["c"])  # what was sent to a process that hangs is done once it wakes


def test_outage_fails_fast_and_objects_return_after_it(server, store, tmp_path):
    store.put("a", b"1")
    patient, store = store, open_store(store.address, patience_s=0.06)
    for begin, end, said in ((server.refuse, server.serve, "no connection"), (server.hang, server.wake, "in time")):
        begin()
        try:
            for call in every_call(store, tmp_path):
                with pytest.raises(NotReady, match=f"repository: the object store cannot be reached: .*{said}"):
                    call()
        finally:
            end()
        assert patient.get("a").data == b"1"
    assert list(tmp_path.iterdir()) == []


def keep(objects, path, body):
    """What a store does of a creation."""
    if path in objects:
        return 412
    objects[path] = body
    return 200


def test_creation_with_a_lost_reply_is_recognised_as_own(monkeypatch):
    def reply(method, objects, path, body, headers):
        if method == "PUT":
            assert headers["if-none-match"] == "*"
            first = path not in objects
            status = keep(objects, path, body)
            return (None if first else status), b""
        return 200, objects[path]

    with Broken(reply) as broken:
        set_env(monkeypatch, broken.env)
        assert open_store("s3://b/p").create("record", b"mine")
        assert broken.asked == ["PUT", "PUT", "HEAD", "GET"]


def test_failed_creation_that_was_overtaken_belongs_to_the_other_writer(monkeypatch):
    def reply(method, objects, path, body, headers):
        if method == "PUT":
            first = path not in objects
            objects[path] = b"theirs"
            return (None, b"") if first else (412, b"")
        return 200, objects[path]

    with Broken(reply) as broken:
        set_env(monkeypatch, broken.env)
        assert not open_store("s3://b/p").create("record", b"mine")


def test_creation_conflicting_with_one_in_progress_is_retried(monkeypatch):
    def reply(method, objects, path, body, headers):
        if method == "PUT":
            objects["asked"] = objects.get("asked", 0) + 1
            return (409, b"") if objects["asked"] == 1 else (keep(objects, path, body), b"")
        return (200, objects[path]) if path in objects else (404, b"")

    with Broken(reply) as broken:
        set_env(monkeypatch, broken.env)
        assert open_store("s3://b/p").create("record", b"mine")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "it refuses these credentials (403)"),
        (500, "it answers with status 500"),
        (503, "it answers with status 503"),
    ],
)
def test_store_error_is_reported_in_one_line(monkeypatch, status, said):
    with Broken(lambda *_: (status, b"<secret>")) as broken:
        set_env(monkeypatch, broken.env)
        with pytest.raises(NotReady) as caught:
            open_store("s3://b/p").get("a")
        assert str(caught.value) == f"repository: the object store cannot be reached: {said}"


def test_object_store_library_is_an_optional_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(BadInput, match=r"^repository s3:// needs obstore, .*pip install .*\[objects\]'"):
        open_store("s3://bucket/x")


def page(names, token="", folders=True):
    """A page of a listing; token: of the next one, "" for none."""
    below = "<CommonPrefixes><Prefix>p/%s/</Prefix></CommonPrefixes>" if folders else (
        "<Contents><Key>p/%s</Key><Size>1</Size><ETag>e</ETag>"
        "<LastModified>2026-11-24T04:00:00.000Z</LastModified></Contents>"
    )  # fmt: skip
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return f"<ListBucketResult>{more}{''.join(below % name for name in names)}</ListBucketResult>".encode()


@pytest.fixture
def broken(monkeypatch):
    """Opens a store whose server gives, for the n-th request, reply(n)."""
    with contextlib.ExitStack() as open_servers:

        def opened(reply):
            count = itertools.count()
            server = open_servers.enter_context(Broken(lambda *_: (200, reply(next(count)))))
            set_env(monkeypatch, server.env)
            return open_store("s3://models/p", patience_s=PATIENCE_S), server

        yield opened


ENDLESS = {
    "new names, new tokens": lambda n: page([f"m{n}"], f"t{n}"),
    "empty pages, one token": lambda n: page([], "t"),
}


@pytest.mark.parametrize("reply", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize(
    "ask", [lambda store: store.folder("").folders, lambda store: list(store.keys(""))], ids=["folders", "keys"]
)
def test_endless_listing_is_an_outage(broken, monkeypatch, reply, ask):
    """It never returned, and took the mirror's one thread with it."""
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.object_store.LISTING_S", 0.1)
    store, server = broken(reply)
    with pytest.raises(NotReady, match="a listing took more than"):
        ask(store)
    assert len(server.asked) > 1


def test_circular_listing_is_an_outage(broken):
    store, _ = broken(lambda n: page([f"k{k:04}" for k in range(1000)], "t", folders=False))
    with pytest.raises(NotReady, match="repeats itself"):
        list(store.keys(""))


def test_listing_with_implausibly_many_names_is_an_outage(broken, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.extensions.object_stores.object_store.MAX_NAMES", 2)
    store, _ = broken(lambda n: page(["a", "b", "c"]))
    with pytest.raises(NotReady, match="more than 2 names"):
        store.folder("")


def test_overlong_name_is_refused_and_not_listed(broken):
    store, _ = broken(lambda n: page(["a" * 1025], folders=False))
    with pytest.raises(NotReady, match="names of 1024 bytes"):
        list(store.keys(""))
    with pytest.raises(BadInput, match="1024 bytes"):
        store.head("a" * 1025)


def test_body_longer_than_its_content_length_is_limited_while_reading(broken):
    """Content-Length said 10, and 400 MB were read into memory before it failed."""
    sent = []

    def lie(handler):
        head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\ntransfer-encoding: chunked\r\netag: e\r\n"
        handler.wfile.write(f"{head}last-modified: Tue, 24 Nov 2026 04:00:00 GMT\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            for _ in range(64):
                handler.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                sent.append(1)
        handler.close_connection = True

    store, server = broken(lambda n: lie)
    with pytest.raises((Corrupt, NotReady)):
        store.get("labels.json", limit=1000)
    with pytest.raises((Corrupt, BadInput, NotReady)):
        store.read_range("labels.json", 0, 1000, "")
    assert len(sent) < 40 * len(server.asked)


def test_caller_inside_an_event_loop_may_list(store):
    """A notebook has one."""

    async def caller():
        return store.folder("").folders

    store.put("a/b", b"")
    assert asyncio.run(caller()) == ["a"]
