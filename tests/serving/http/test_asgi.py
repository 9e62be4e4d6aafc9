"""Bodies in and errors out, seen through the HTTP application."""

import asyncio
import gzip

from freshet_serving.processor.errors import BadInput, Expired, Overloaded, TooLarge
from tests.serving.fakes import call, send
from tests.serving.http.data_app import BODY, serve


def test_errors_of_the_processor_keep_their_status():
    app, processor, _, _ = serve()
    for error, status in ((BadInput("x"), 400), (TooLarge("x"), 413), (Overloaded("x", 2.1), 429)):
        processor.refuse = error
        reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
        assert (reply.status, reply.json()) == (status, {"error": "x"})
        assert reply.headers.get("retry-after") == ("3" if status == 429 else None)
    processor.refuse, processor.fail = None, Expired("late")
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 504


def test_bodies_may_be_compressed_and_chunked():
    app, _, _, _ = serve()
    packed = gzip.compress(BODY)
    headers = {"content-encoding": "gzip"}
    assert send(app, "POST", "/v1/models/ctr:predict", [packed[:9], b"", packed[9:]], headers).status == 200
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, headers).status == 400
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-encoding": "br"}).status == 415


def test_too_large_body_is_refused_before_it_is_fully_read():
    app, _, _, _ = serve(max_body_bytes=100)
    declared = send(app, "POST", "/v1/models/ctr:predict", [b"x" * 10] * 2, {"content-length": "101"})
    assert (declared.status, declared.headers["connection"]) == (413, "close")
    assert send(app, "POST", "/v1/models/ctr:predict", [b"x" * 60] * 9).status == 413
    assert (
        send(app, "POST", "/v1/models/ctr:predict", gzip.compress(b"x" * 101), {"content-encoding": "gzip"}).status
        == 413
    )
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-length": "x"}).status == 400
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-length": "3"}).status == 400


def test_client_that_disconnects_mid_body_gets_no_reply():
    app, processor, _, metrics = serve()
    assert asyncio.run(call(app, "POST", "/v1/models/ctr:predict", [BODY[:5]], disconnect=True)) is None
    assert processor.requests == []
    assert b'freshet_http_requests_total{code="499",protocol="tfs_rest"} 1.0' in metrics.scrape()
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
