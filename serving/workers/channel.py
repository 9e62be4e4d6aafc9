"""Send messages with file descriptors between the supervisor and one worker, over a private socket pair.

A message is a JSON object and any number of descriptors. The kernel keeps the packets of SOCK_SEQPACKET separate and in
order:

    +    descriptors only, at most 253; more packets of this message follow
    J    JSON, and the last of the descriptors
    M    the JSON in a memfd, which is the last of the descriptors and is sent alone: too large for a socket's buffer

Invariants: the packets of one message are sent under one lock. One thread receives. Sizes are bounded before anything
is read. If the peer has gone or sends an invalid message, ChannelClosed is raised: between two processes of one program
there is nothing to repair. A process at its descriptor limit still receives the JSON (DescriptorsExhausted): the kernel
drops the descriptors that do not fit, and the others are closed.

Rejected: a stream with length prefixes (descriptors arrive attached to an arbitrary read), multiprocessing's
connections (pickle).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from freshet_serving.processor import errors
from freshet_serving.processor.errors import FreshetError

MAX_FDS = 253
MAX_INLINE_NBYTES = 32 << 10
MAX_MESSAGE_NBYTES = 256 << 20
MAX_MESSAGE_FDS = 1 << 16
RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
INT_NBYTES = array("i").itemsize
FDS_NBYTES = socket.CMSG_SPACE(MAX_FDS * INT_NBYTES)
PART, INLINE, MEMFD = b"+", b"J", b"M"

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The process at the other end has gone or sent an invalid message."""


class DescriptorsExhausted(Exception):
    """A message arrived without its descriptors: this process may open no more. `message` is its JSON part."""

    def __init__(self, message: Message) -> None:
        super().__init__("no file descriptors are left")
        self.message = message


class Channel:
    """One end of a channel between two processes. send() may be called from any thread, receive() from one."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a blocking AF_UNIX SOCK_SEQPACKET socket."""
        self._sock = sock
        self._sending = threading.Lock()
        self._parts: list[int] = []
        self._starved = False

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        this_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(this_end), other_end

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a JSON object and descriptors, which the caller still owns, waiting while the other end is slow.

        Raises ChannelClosed if the other process has gone.
        """
        with _enclosed(orjson.dumps(message), fds) as (data, enclosed):
            self._send(data, enclosed)

    def send_nowait(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send a message with few descriptors, or return False if that would block.

        Raises ChannelClosed if the other process has gone.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            with _enclosed(orjson.dumps(message), fds) as (data, enclosed):
                self._packet(data, enclosed, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            raise ChannelClosed("the other process has closed the channel") from None
        finally:
            self._sending.release()
        return True

    def receive(self, wait: bool = True) -> tuple[Message, list[int]] | None:
        """Receive the next message and its descriptors, which the caller owns; without `wait` None if there is none.

        Raises ChannelClosed if the other process has gone or sent an invalid message, DescriptorsExhausted if this
        process may open no more descriptors.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        while True:
            try:
                data, extra, got_flags, _ = self._sock.recvmsg(MAX_INLINE_NBYTES + 1, FDS_NBYTES, flags)
            except BlockingIOError:
                return None
            except OSError:
                raise ChannelClosed("the other process has closed the channel") from None
            for level, kind, raw in extra:
                if (level, kind) == RIGHTS:
                    self._parts += array("i", raw[: len(raw) - len(raw) % INT_NBYTES])
            if not data:
                self._drop_parts()
                raise ChannelClosed("the other process has closed the channel")
            if got_flags & socket.MSG_TRUNC or len(self._parts) > MAX_MESSAGE_FDS:
                self._drop_parts()
                raise ChannelClosed("the other process sent a message that is too large")
            self._starved = self._starved or bool(got_flags & socket.MSG_CTRUNC)
            if self._starved and data[:1] != MEMFD:
                # Frees descriptors for the memfd of the JSON that may still come.
                self._drop_parts()
            if data[:1] != PART:
                return self._whole(data)

    def close(self) -> None:
        """Close the channel for both ends; a blocked receive() returns."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def disown(self) -> None:
        """Close an end that another process also holds and continues to use."""
        self._sock.close()

    def _send(self, data: bytes, fds: Sequence[int]) -> None:
        with self._sending:
            try:
                ahead = len(fds) - 1 if data[:1] == MEMFD else max(0, len(fds) - 1) // MAX_FDS * MAX_FDS
                for start in range(0, ahead, MAX_FDS):
                    self._packet(PART, fds[start : min(start + MAX_FDS, ahead)])
                self._packet(data, fds[ahead:])
            except OSError:
                raise ChannelClosed("the other process has closed the channel") from None

    def _packet(self, data: bytes, fds: Sequence[int], flags: int = 0) -> None:
        # Not socket.send_fds and recv_fds: they ignore their flags.
        self._sock.sendmsg([data], [(*RIGHTS, array("i", fds))] if fds else [], flags)

    def _whole(self, data: bytes) -> tuple[Message, list[int]]:
        fds, self._parts = self._parts, []
        starved, self._starved = self._starved, False
        try:
            if data[:1] == MEMFD:
                text = _contents(fds.pop())
            elif data[:1] == INLINE:
                text = data[1:]
            else:
                raise ValueError("unknown kind of packet")
            message = orjson.loads(text)
            if not isinstance(message, dict):
                raise ValueError("expected an object")
        except (ValueError, IndexError, OSError):
            for fd in fds:
                os.close(fd)
            raise ChannelClosed("the other process sent an invalid message") from None
        if starved:
            raise DescriptorsExhausted(message)
        return message, fds

    def _drop_parts(self) -> None:
        parts, self._parts = self._parts, []
        for fd in parts:
            os.close(fd)


@contextlib.contextmanager
def _enclosed(data: bytes, fds: Sequence[int]) -> Iterator[tuple[bytes, Sequence[int]]]:
    """Yield the last packet of a message and its descriptors; large JSON goes into a memfd."""
    if len(data) > MAX_MESSAGE_NBYTES or len(fds) >= MAX_MESSAGE_FDS:
        raise ValueError(f"message of {len(data)} bytes and {len(fds)} descriptors is too large")
    if len(data) <= MAX_INLINE_NBYTES:
        yield INLINE + data, fds
        return
    fd = os.memfd_create("freshet-message", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        yield MEMFD, [*fds, fd]
    finally:
        os.close(fd)


def refusal(name: str, message: str) -> FreshetError:
    """Rebuild an error of processor.errors that the worker raised, else a FreshetError."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, FreshetError):
        return kind(message)
    return FreshetError(message)


def _contents(fd: int) -> bytes:
    with open(fd, "rb") as file:
        nbytes = os.fstat(fd).st_size
        if nbytes > MAX_MESSAGE_NBYTES:
            raise ValueError("the message is too large")
        file.seek(0)
        return file.read(nbytes)
