"""What a server, or a program beside it, reads and what turns hostile: files, an object store, Redis; and gRPC peers.

    python -m tests.faults.hostile_sources store PORT     S3 before the one at PORT: good, endless, slow, overlong
    python -m tests.faults.hostile_sources redis PORT     Redis before the one at PORT: good, drips, endless, nonsense
    python -m tests.faults.hostile_sources silent PORT    keeps gRPC connections that say nothing
    python -m tests.faults.hostile_sources resets PORT    opens gRPC streams and resets them at once

The first two say on stdout at which port they are, and what they are from now on comes as a line on stdin. The others
begin with a line on stdin and end with the next one; then they say what became of it, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.hostile import RPC_PREFACE

BATCH, SILENT, STREAMS_A_SECOND = 1 << 16, 500, 4000
DRIP_S, LATE_S = 0.03, 2.0
PAGES = itertools.count()
NONSENSE = (b":abc\r\n", b"$abc\r\n", b"*abc\r\n", b"-MOVED abc\r\n", b"*1\r\n" * 20_000)


class Turncoat:
    """A process that is one of the four; a context manager."""

    def __init__(self, kind, port):
        command = [sys.executable, "-m", "tests.faults.hostile_sources", kind, str(port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def read(self):
        """The next line that it says."""
        return json.loads(self._process.stdout.readline())

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


def pipe(path):
    os.mkfifo(path)


def link_to_itself(path):
    path.symlink_to(path)


def text(path):
    path.write_text("not Parquet\n" * 10)


def damaged_footer(path):
    _write(pa.table({"freshet.request": ["a"]}), path)
    data = bytearray(path.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    data[-8 - footer : -8] = b"\xff" * footer
    path.write_bytes(data)


def other_columns(path):
    _write(pa.table({"other": [1]}), path)


FILES = (pipe, link_to_itself, text, damaged_footer, other_columns)
"""Kinds that need nothing of their neighbours; a table that decodes to gigabytes is the last."""


def repeated_string():
    """A column of twenty thousand strings of 100 kB, some kilobytes of Parquet."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 100_000]))


def _write(table, path):
    # Without Arrow's own schema a dictionary is read as what Parquet has: strings. The metadata goes with it.
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata or {})


class Files:
    """Puts hostile files into a folder, each whole and under a name of its own, every kind in turn."""

    def __init__(self, folder, aside, name, bomb):
        """aside: folder on the same disk that nobody reads. name: makes a file's name of its number. bomb: the table
        that decodes to gigabytes."""
        self._folder, self._name, self.count = folder, name, 0
        aside.mkdir()
        self._made = [aside / kind.__name__ for kind in FILES]
        for kind, path in zip(FILES, self._made):
            kind(path)
        self._made.append(aside / "bomb")
        _write(bomb, self._made[-1])

    def put(self):
        source, path = self._made[self.count % len(self._made)], self._folder / self._name(self.count)
        self.count += 1
        if source.is_symlink():
            path.symlink_to(path)
        else:
            os.link(source, path)


class Mode:
    """What the process is now; told by lines on stdin."""

    def __init__(self):
        self.now = "good"
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def _read(self):
        if not (data := os.read(sys.stdin.fileno(), 4096)):
            # Whoever started it has ended.
            os._exit(0)
        self.now = data.decode().split()[-1]


async def serve(relay, port):
    mode, tasks = Mode(), set()

    async def taken(reader, writer):
        # The loop alone keeps no task alive.
        tasks.add(task := asyncio.current_task())
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await relay(mode, port, reader, writer)
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def relay_store(mode, port, reader, writer):
    """One request and its reply; a connection of the store's own for each."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().partition(b":")[::2] for line in head.split(b"\r\n")[1:])
    body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
    listing = b"list-type=2" in head.partition(b"\r\n")[0]
    if mode.now == "slow":
        await asyncio.sleep(LATE_S)
    if mode.now == "endless" and listing:
        page = endless_page()
        writer.write(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
        await writer.drain()
        return
    if mode.now == "overlong" and not listing and head.startswith(b"GET"):
        writer.write(b'HTTP/1.1 200 x\r\ncontent-type: x\r\ntransfer-encoding: chunked\r\netag: "x"\r\n')
        writer.write(b"last-modified: Mon, 24 Nov 2025 04:00:00 GMT\r\n\r\n")
        while True:
            writer.write(b"%x\r\n%b\r\n" % (BATCH, bytes(BATCH)))
            await writer.drain()
    above_reader, above = await asyncio.open_connection("127.0.0.1", port)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    above.write(b"\r\n".join([lines[0], b"connection: close", *lines[1:]]) + body)
    while data := await above_reader.read(BATCH):
        writer.write(data)
        await writer.drain()
    above.close()


def endless_page():
    """A page of a listing behind which there is always another."""
    number = next(PAGES)
    names = "".join(f"<CommonPrefixes><Prefix>m{number}-{n}/</Prefix></CommonPrefixes>" for n in range(1000))
    return (
        f"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t{number}</NextContinuationToken>"
        f"{names}</ListBucketResult>"
    ).encode()


async def relay_redis(mode, port, reader, writer):
    above_reader, above = await asyncio.open_connection("127.0.0.1", port)

    async def ask():
        while data := await reader.read(BATCH):
            above.write(data)
            await above.drain()
        above.close()

    asking = asyncio.ensure_future(ask())
    count = itertools.count()
    try:
        while data := await above_reader.read(BATCH):
            if mode.now == "drips":
                for n in range(len(data)):
                    writer.write(data[n : n + 1])
                    await writer.drain()
                    await asyncio.sleep(DRIP_S)
            elif mode.now == "endless":
                writer.write(b"*1\r\n$9999999999999\r\n")
                while True:
                    writer.write(bytes(BATCH))
                    await writer.drain()
            elif mode.now == "nonsense":
                writer.write(NONSENSE[next(count) % len(NONSENSE)])
            else:
                writer.write(data)
            await writer.drain()
    finally:
        asking.cancel()
        above.close()


def silent(port):
    """Keeps SILENT connections, half of them behind their first words; opens another for each that is closed."""
    held, opened = [], 0
    poll = select.poll()
    by_fd = {}
    while not _told():
        while len(held) < SILENT:
            try:
                sock = socket.create_connection(("127.0.0.1", port), timeout=5)
                sock.sendall(RPC_PREFACE if opened % 2 else b"")
            except OSError:
                break
            held.append(sock)
            by_fd[sock.fileno()] = sock
            poll.register(sock, select.POLLIN)
            opened += 1
        for fd, _ in poll.poll(50):
            try:
                alive = by_fd[fd].recv(1 << 12) != b""
            except OSError:
                alive = False
            if not alive:
                poll.unregister(fd)
                held.remove(sock := by_fd.pop(fd))
                sock.close()
    return {"connections": opened, "closed": opened - len(held)}


def resets(port):
    """Opens STREAMS_A_SECOND streams, each with the head of a request, and resets it in the same breath."""
    streams, connections = 0, 0
    began_s, sock, number = time.monotonic(), None, 1
    while not _told():
        if streams > STREAMS_A_SECOND * (time.monotonic() - began_s):
            time.sleep(0.01)
            continue
        try:
            if sock is None:
                sock = socket.create_connection(("127.0.0.1", port), timeout=5)
                sock.sendall(RPC_PREFACE)
                connections, number = connections + 1, 1
            frames = b""
            for _ in range(100):
                frames += _frame(1, 4, number, REQUEST_HEAD) + _frame(3, 0, number, (8).to_bytes(4, "big"))
                number += 2
            sock.sendall(frames)
            streams += 100
            while select.select([sock], [], [], 0)[0]:
                if not sock.recv(1 << 16):
                    raise ConnectionResetError
        except OSError:
            if sock is not None:
                sock.close()
            sock = None
            time.sleep(0.01)
    return {"streams": streams, "connections": connections}


def _frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(first, value):
    return first + bytes((len(value),)) + value


# HPACK: POST, http, and literals of path, authority, content-type and te.
REQUEST_HEAD = (
    b"\x83\x86"
    + _literal(b"\x04", b"/inference.GRPCInferenceService/ServerLive")
    + _literal(b"\x01", b"localhost")
    + _literal(b"\x0f\x10", b"application/grpc")
    + _literal(b"\x00\x02te", b"trailers")
)


def _told():
    """True once a line is there on stdin."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main(kind, port) -> int:
    if kind in ("store", "redis"):
        asyncio.run(serve(relay_store if kind == "store" else relay_redis, port))
    sys.stdin.readline()
    print(json.dumps({"silent": silent, "resets": resets}[kind](port)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
