"""The server process: two ports, the watcher, readiness, and an orderly end.

Threads: the main thread runs the data port's event loop; `freshet-admin` runs the admin port's;
`freshet-loader` opens the processor and ends; `freshet-watcher` polls the repository. Session threads belong
to the processor.

Order at the start: signal handlers, both ports (503 while models load), processor, watcher, the ready line.
Order at the end: unready, drain_s of ordinary service, no new connections, requests in flight answered within
shutdown_timeout_s, watcher, admin port, processor. A second signal skips what is left of the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TextIO

import uvicorn

from processor.errors import BadInput, FreshetError
from serving.admin import create_admin
from serving.app import DataApp
from serving.config import ServeConfig
from serving.lifecycle import Lifecycle
from serving.metrics import Metrics
from serving.protocol import PredictProtocol
from serving.watcher import Watcher

if TYPE_CHECKING:
    from processor.engine import Processor

log = logging.getLogger("freshet.server")

BACKLOG = 2048
# The event loop, the sessions and the writer hand the GIL to each other all the time; with Python's 5 ms a thread that
# only needs it for microseconds waits behind one that does not. Measured under locust at saturation, a delta a second,
# alternating runs: 1.17 to 1.25 times the requests, p99 0.7 to 0.8 of it, freshness 0.75; no better at 0.1 ms.
SWITCH_INTERVAL_S = 0.0005
KEEP_ALIVE_S = 75
ADMIN_STOP_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def computing(config: ServeConfig) -> Literal["inline", "threads"]:
    """What compute = "auto" means: inline where another thread would only share the core with the event loop."""
    from processor.cores import available

    if config.compute == "auto":
        return "inline" if config.workers > 1 or len(available()) == 1 else "threads"
    return "inline" if config.compute == "inline" else "threads"


def open_processor(config: ServeConfig) -> Processor:
    """The processor that the options describe, its models loaded."""
    from processor.engine import Processor, ProcessorConfig

    return Processor.initialize(
        ProcessorConfig(
            repository=config.repository,
            sessions=config.sessions,
            compute=computing(config),
            max_queue_rows=config.max_queue_rows,
            models=config.models or None,
            undo_depth=config.undo_depth,
        )
    )


class Port(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner."""

    def __init__(
        self, app: object, listener: socket.socket, shutdown_timeout_s: float, http: object = "httptools"
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http=http,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=shutdown_timeout_s,  # type: ignore[arg-type]
                backlog=BACKLOG,
            )
        )
        self._listener = listener

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listen(self) -> None:
        """Serves until end() is called, then closes the listener."""
        await self.serve([self._listener])

    def end(self) -> None:
        """Stops accepting and finishes what is in flight."""
        self.should_exit = True

    def abort(self) -> None:
        """Stops without waiting for what is in flight."""
        self.should_exit = self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Server:
    """One `freshet serve`. run() blocks; stop() and stop again mean what a first and a second signal mean."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        version: str = "",
        open_processor: Callable[[ServeConfig], Processor] = open_processor,
        out: TextIO | None = None,
    ) -> None:
        self._config = config
        self._open_processor = open_processor
        self._out = out or sys.stdout
        self._start_s = time.monotonic()
        self._lifecycle = Lifecycle()
        self._metrics = Metrics(self._lifecycle)
        self._watcher: Watcher | None = None
        self._failed = False
        self._announced = False
        self._closing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        data, admin = _listen(config.host, config.http_port), _listen(config.admin_host, config.admin_port)
        self.http_address, self.admin_address = data.getsockname()[:2], admin.getsockname()[:2]
        app = DataApp(self._lifecycle, self._metrics, version=version, max_body_nbytes=config.max_body_bytes)
        guarded = create_admin(self._lifecycle, self._metrics, token=config.admin_token, host=config.admin_host)
        protocol = functools.partial(PredictProtocol, data_app=app)
        self._data_port = Port(app, data, config.shutdown_timeout_s, protocol)
        self._admin_port = Port(guarded, admin, ADMIN_STOP_S)
        self._loader = threading.Thread(target=self._load, name="freshet-loader", daemon=True)
        self._admin = threading.Thread(target=self._run_admin, name="freshet-admin", daemon=True)

    def run(self) -> int:
        """Serves until stopped; returns the process's exit code: 0, or 1 when the processor could not be
        opened."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._main())
        self._finish()
        return int(self._failed)

    def stop(self) -> None:
        """Starts the orderly end; a second call cuts it short. Safe from any thread and from signal
        handlers."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self) -> None:
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._loop.add_signal_handler(number, self._on_stop)
        serving = asyncio.create_task(self._data_port.listen())
        self._admin.start()
        self._loader.start()
        log.info("listening on %s, admin on %s", _text(self.http_address), _text(self.admin_address))
        await self._stopping.wait()
        self._lifecycle.drain()
        log.info("draining: unready, serving for %g s more", self._config.drain_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), self._config.drain_s)
        self._data_port.end()
        hurry = asyncio.create_task(self._hurry())
        await serving
        hurry.cancel()

    async def _hurry(self) -> None:
        await self._hurried.wait()
        self._data_port.abort()

    def _load(self) -> None:
        try:
            processor = self._open_processor(self._config)
        except Exception as error:
            if isinstance(error, FreshetError):
                log.error("the repository cannot be served: %s", error)
            else:
                log.exception("the repository cannot be served")
            self._failed = True
            self.stop()
            return
        # What was loaded stays: without it the collector has less to walk between two requests.
        gc.collect()
        gc.freeze()
        with self._closing:
            if self._lifecycle.draining:
                processor.close()
                return
            self._lifecycle.open(processor)
            self._watcher = Watcher(
                processor.poll, self._config.poll_interval_s, lambda lines: self._announce(processor)
            )
            self._watcher.start()
        self._announce(processor)
        if not self._announced:
            log.warning("no model is ready yet; waiting for the repository")

    def _announce(self, processor: Processor) -> None:
        """Prints the ready line, the first time that every model is ready."""
        if not processor.ready or self._announced:
            return
        self._announced = True
        models = ",".join(f"{s.model}@{s.generation}" for s in processor.stats())
        took_s = time.monotonic() - self._start_s
        ports = f"http={_text(self.http_address)} admin={_text(self.admin_address)}"
        print(f"freshet: ready in {took_s:.2f} s {ports} models={models}", file=self._out, flush=True)

    def _run_admin(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._admin_port.listen())

    def _finish(self) -> None:
        """Ends every thread that run() began, each within its own bound."""
        timeout_s = 0.0 if self._hurried.is_set() else self._config.shutdown_timeout_s
        self._loader.join(timeout_s)
        if self._watcher is not None:
            self._watcher.stop(timeout_s)
        self._admin_port.end()
        self._admin.join(ADMIN_STOP_S)
        with self._closing:
            processor = self._lifecycle.close()
        if processor is not None:
            processor.close()
        log.info("stopped")


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def _listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket; raises BadInput with one line when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadInput(f"{host}:{port}: cannot listen there: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
