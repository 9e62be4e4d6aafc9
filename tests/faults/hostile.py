"""What strangers send to the ports: whole requests, and exchanges that no request is.

Every one of them has to be answered within ANSWER_S, with 200 or 4xx or a connection that ends, whatever it is; what
is left open is the field's to close. An answer of 5xx is a fault but for 503, which a server may give that is busy.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import struct
import time

import numpy as np

ANSWER_S = 20.0
# An HTTP/2 client's first words: the preface, and SETTINGS without settings.
RPC_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
PREDICT, INFER = b"/v1/models/small:predict", b"/v2/models/small/infer"


class Bad(Exception):
    """An answer that must not be."""


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)


def post(path, body, *lines):
    head = [b"POST %b HTTP/1.1" % path, b"host: x", *lines]
    if not any(line.startswith((b"content-length", b"transfer-encoding")) for line in lines):
        head.append(b"content-length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def answer(sock):
    """The status line's code, or "closed"."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            more = sock.recv(1 << 16)
            if not more:
                return "closed"
            data += more
    except TimeoutError:
        raise Bad(f"nothing was answered within {ANSWER_S:g} s") from None
    except OSError:
        return "closed"
    status = data.split(b" ", 2)[1].decode("latin-1")
    if not (status == "200" or status.startswith("4") or status == "503"):
        raise Bad(data[:300].decode("latin-1"))
    return status


def exchange(server, data, admin=False):
    with contextlib.closing(connect(server.admin_port if admin else server.http_port)) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        return answer(sock)


def bomb(size):
    """A user and a million candidates in some kB of gzip."""
    count = (20_000, 200_000, 1_200_000)[size]
    body = b'{"inputs":{"user":[1],"tags":[["a"]],"floats":[' + b"[1,2,3,4]," * count + b"[1,2,3,4]]}}"
    return post(PREDICT, gzip.compress(body, 9), b"content-encoding: gzip")


def empty_lists(size):
    body = b'{"inputs":{"tags":[' + b"[]," * (10_000, 1_000_000, 20_000_000)[size] + b"[]]}}"
    return post(PREDICT, gzip.compress(body, 6), b"content-encoding: gzip")


def nesting(size):
    depth = (100, 10_000, 30_000_000)[size]
    return post(PREDICT, b'{"inputs":' + b"[" * depth + b"]" * depth + b"}")


def not_numbers(size):
    """The slow way of reading JSON."""
    return post(PREDICT, b'{"instances":[' + b"NaN," * (1000, 100_000, 2_000_000)[size] + b"Infinity]}")


def one_long_string(size):
    return post(PREDICT, b'{"signature_name":"' + b"x" * (100, 1 << 20, 60 << 20)[size] + b'"}')


def many_names(size):
    """Inputs that the model does not have."""
    names = b",".join(b'"n%d":[1]' % n for n in range((100, 10_000, 2_000_000)[size]))
    return post(PREDICT, b'{"inputs":{"user":[1],"tags":[["a"]],"floats":[[1,2,3,4]],%b}}' % names)


def _infer(*tensors):
    """KServe's binary form. tensors: name, datatype, shape, bytes."""
    described = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, kind, shape, data in tensors
    ]
    head = json.dumps({"inputs": described}).encode()
    body = head + b"".join(data for *_, data in tensors)
    return post(INFER, body, b"inference-header-content-length: %d" % len(head))


def many_ids(size):
    """One row of as many ids as fit into a body."""
    return _ids((10_000, 1_000_000, 12_000_000)[size])


def ids_within_limits(size):
    """As many as may be asked for: not refused, and not in anybody's way."""
    return _ids((100_000, 1_000_000, 3_900_000)[size])


def _ids(count):
    return _infer(
        ("user", "INT64", [1], bytes(8)),
        ("tags", "BYTES", [count], b"\1\0\0\0a" * count),
        ("tags.row_splits", "INT64", [2], np.array([0, count], np.int64).tobytes()),
        ("floats", "FP32", [1, 4], bytes(16)),
    )


def _rows(count):
    return _infer(
        ("user", "INT64", [count], bytes(8 * count)),
        ("tags", "BYTES", [0], b""),
        ("tags.row_splits", "INT64", [count + 1], bytes(8 * count + 8)),
        ("floats", "FP32", [count, 4], bytes(16 * count)),
    )


def many_rows(size):
    return _rows((70_000, 500_000, 2_000_000)[size])


def rows_within_limits(size):
    """As many as may be asked for: computed in slices."""
    return _rows((1000, 20_000, 65_000)[size])


def list_for_all(size):
    """One user's long list for many candidates: small to send, and large for whoever repeats it for each of them."""
    count = (1000, 5000, 15_000)[size]
    body = b'{"inputs":{"user":[%b1],"tags":[[%b"a"]],"floats":[[1,2,3,4]]}}' % (b"1," * 19_999, b'"a",' * count)
    return post(PREDICT, gzip.compress(body, 9), b"content-encoding: gzip")


def small_chunks(size):
    """A body in chunks of two bytes."""
    body = b'{"instances":[' + b"1," * (100, 20_000, 1_000_000)[size] + b"1]}"
    chunks = b"".join(b"2\r\n%b\r\n" % body[n : n + 2] for n in range(0, len(body) - 1, 2))
    return post(PREDICT, chunks + b"0\r\n\r\n", b"transfer-encoding: chunked")


def many_headers(size):
    lines = [b"x-%d: %b" % (n, b"y" * 100) for n in range((50, 1000, 300_000)[size])]
    return post(PREDICT, b"{}", *lines)


def infinite(size):
    """Numbers beyond what floats hold."""
    numbers = (b"3.3e38,-3.3e38,1,1", b"1e39,1,1,1", b"Infinity,1,1,1")[size]
    return post(PREDICT, b'{"inputs":{"user":[1],"tags":[["a"]],"floats":[[%b]]}}' % numbers)


def elsewhere(size):
    """Another site's page, and a path that would write into a log."""
    path = b"/v2/repository/models/small%0aERROR%20forged/unload"
    return post(path, b"{}" * 10**size, b"origin: http://evil.example", b"sec-fetch-site: cross-site")


def long_head(server, draw):
    """A head that never ends, in small pieces."""
    with contextlib.closing(connect(server.http_port)) as sock:
        sent = b"GET /healthz HTTP/1.1\r\n"
        with contextlib.suppress(OSError):
            for n in range(draw.choice((10, 400, 4000))):
                sock.sendall(sent + b"x-%d: " % n + b"y" * 200)
                sent = b"\r\n"
            sock.sendall(b"\r\nhost: x\r\n\r\n")
        return answer(sock)


def smuggled(server, draw):
    """A body that another reader would take for a request."""
    inner = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    lines = draw.choice(
        (
            (b"content-length: 5", b"transfer-encoding: chunked"),
            (b"content-length: 0", b"content-length: %d" % len(inner)),
            (b"transfer-encoding: xchunked",),
            (b"content-length: %d" % len(inner), b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c",
             b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA"),
        )
    )  # fmt: skip
    with contextlib.closing(connect(server.http_port)) as sock:
        head, body = post(PREDICT, inner, *lines).split(b"\r\n\r\n", 1)
        with contextlib.suppress(OSError):
            sock.sendall(head + b"\r\n\r\n")
            time.sleep(0.02)
            sock.sendall(body)
        status = answer(sock)
        sock.settimeout(0.2)
        with contextlib.suppress(OSError):
            if b"/smuggled" in sock.recv(1 << 16):
                raise Bad("the body was answered as a request")
        return status


def garbage(server, draw):
    """Bytes that are no protocol, to any port."""
    port = draw.choice((server.http_port, server.grpc_port, server.admin_port))
    with contextlib.closing(connect(port)) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(draw.randbytes(draw.choice((1, 64, 65536))))
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            sock.recv(1 << 16)
    return "sent"


def left_open(server, draw, held):
    """A connection that says nothing, or the beginning of something."""
    sock = connect(draw.choice((server.http_port, server.http_port, server.grpc_port, server.admin_port)))
    held.append(sock)
    begun = post(PREDICT, b"{", b"content-length: 60000000")
    with contextlib.suppress(OSError):
        sock.sendall(draw.choice((b"", b"P", b"POST /v1/models/small:predict HTTP/1.1\r\n", begun)))
    return "open"


def idle_rpc(server, draw, held):
    """A gRPC connection that has said its first words and says nothing more."""
    sock = connect(server.grpc_port)
    held.append(sock)
    with contextlib.suppress(OSError):
        sock.sendall(RPC_PREFACE)
    return "open"


def deaf(server, draw, held):
    """Many requests behind each other whose replies nobody reads."""
    sock = connect(server.http_port)
    held.append(sock)
    sock.settimeout(0.2)
    with contextlib.suppress(OSError):
        sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * draw.choice((10, 2000)))
    return "open"


def torn(server, draw):
    """A connection that is reset in the middle of a request."""
    sock = connect(server.http_port)
    sock.sendall(post(PREDICT, b"{" * 100, b"content-length: 100000")[: draw.randrange(20, 160)])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    return "reset"


def half_closed(server, draw):
    """A client that has said all it will gets its reply."""
    body = json.dumps({"inputs": {"user": [1], "tags": [["a"]], "floats": [[1, 2, 3, 4]]}}).encode()
    with contextlib.closing(connect(server.http_port)) as sock:
        sock.sendall(post(PREDICT, body))
        sock.shutdown(socket.SHUT_WR)
        status = answer(sock)
        if status not in ("200", "503"):
            raise Bad(f"half closed, got {status}")
        return status


def bad_upload(server, draw):
    return exchange(server, post(b"/admin/models/small/deltas", os.urandom(draw.choice((0, 100, 1 << 20)))), admin=True)


def bad_admin(server, draw):
    body = draw.choice((b"[" * 60_000, b'{"generation":"' + b"9" * 60_000 + b'"}', b'{"generation":"1.1","x":1}', b""))
    return exchange(
        server, post(b"/admin/models/small/rollback", body, b"content-type: application/json"), admin=True
    )  # fmt: skip


REQUESTS = {
    made.__name__: made
    for made in (
        bomb, empty_lists, nesting, not_numbers, one_long_string, many_names, many_ids, ids_within_limits, many_rows,
        rows_within_limits, list_for_all, small_chunks, many_headers, infinite, elsewhere,
    )
}  # fmt: skip
"""Whole requests to the data port, by how large they are: 0, 1, 2."""

EXCHANGES = (long_head, smuggled, garbage, torn, half_closed, bad_upload, bad_admin)
LEFT = (left_open, idle_rpc, deaf)
"""Exchanges whose connections stay open."""


def sent(name):
    """The exchange that sends one of REQUESTS."""

    def run(server, draw):
        return exchange(server, REQUESTS[name](draw.choice((0, 0, 1, 2))))

    run.__name__ = name
    return run
