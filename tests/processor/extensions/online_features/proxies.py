"""A proxy before a Redis that holds back what the server answers."""

import contextlib
import socket
import threading


class HeldProxy:
    """Passes on what clients send, and what the server answers only while `open` is set."""

    def __init__(self, port):
        self._port, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.open = threading.Event()
        self.open.set()
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    # The server is down; the next client may find it up again.
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, target, held in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pass, args=(source, target, held), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source, target, held):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if held:
                    self.open.wait()
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self.open.set()
        # First of all nobody is accepted any more: a socket that came later would stay open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads[1:]:
            thread.join(10)
