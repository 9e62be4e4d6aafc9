"""Run the server process: its ports, the watcher, readiness, and graceful shutdown.

The layout determines how many processes answer (serving.process_layout). With one, this process serves the data ports,
HTTP and gRPC, itself. With several it is their supervisor (serving.workers): it owns the repository, the admin port and
the one writer, hands out connections, and answers no prediction.

Threads: the main thread runs the data ports' event loop; the admin port, an extension, has its own; `freshet-loader`
opens the processor and ends; `freshet-watcher` polls the repository. Session threads belong to the processor.

Order of startup: signal handlers, the ports (503 while models load), processor, watcher, the ready line.
Order of shutdown: unready; drain_s of service, during which connections are drained one after the other; no new
connections, and requests already sent on open ones are answered within shutdown_timeout_s
(serving.http.connection_draining); watcher, a running import, admin port, processor. A second signal skips the waits.

Nothing that hangs prevents the process from ending: every wait of the server has a bound, it does not wait for what is
known to be stuck (a change that has held its lock for a minute), and serving.shutdown_watchdog ends what is left.

SIGTERM, SIGINT and SIGHUP mean the same. A watched repository needs no reload signal, so a SIGHUP means that the
terminal has closed; if it is ignored when the server starts (nohup), it stays ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.memory import return_large_blocks
from freshet_serving.processor.standby_thread import standing_pool
from freshet_serving.serving.access.credentials import DATA_PLACE, AccessControl, CredentialFiles
from freshet_serving.serving.access.rate_limiter import rate_limiter_memory
from freshet_serving.serving.data_ports import DataPorts
from freshet_serving.serving.front.model_control import ModelControl
from freshet_serving.serving.front.resource_limits import raise_descriptor_limit
from freshet_serving.serving.http.port import SWITCH_INTERVAL_S, listen, new_loop, reserve
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.loading.refused_sources import RefusedSources
from freshet_serving.serving.loading.watcher import Watcher
from freshet_serving.serving.ports import SERVER, AdminPort, Importer
from freshet_serving.serving.process_layout import Layout
from freshet_serving.serving.serve_config import ServeConfig, check_extensions
from freshet_serving.serving.server_parts import ServerParts
from freshet_serving.serving.shutdown_watchdog import ShutdownWatchdog
from freshet_serving.serving.telemetry.metrics import Metrics
from freshet_serving.serving.telemetry.observers import Observers

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from freshet_serving.processor.engine import InProcessHost, Processor
    from freshet_serving.processor.versions.host import ModelHost
    from freshet_serving.serving.workers.fork_server import ForkServer
    from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost

log = logging.getLogger("freshet.server")

PATIENCE_S = 0.05
"""Seconds that the deltas of other models wait, once, for a model that is loading a version."""

HELPERS = 6
"""Helper threads of the event loop for slow work, created at the start: later, memory may be short."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Number of parts in which connections are drained during drain_s.
DRAIN_STEPS = 10


def open_processor(config: ServeConfig, layout: Layout) -> Processor:
    """Open the processor that the options describe, and load its models."""
    from freshet_serving.processor.engine import Processor, ProcessorConfig

    others = {
        "repository": config.repository,
        "mirror": config.mirror,
        "mirror_bytes": config.mirror_bytes,
        "models": config.models or None,
        "undo_depth": config.undo_depth,
        "remote": config.remote(),
        "online_stores": config.stores(),
        "budgets": config.budgets(),
        "policies": config.policies(),
        "delta_guard": config.delta_guard,
        "max_staleness_s": config.max_staleness_s,
        "ready_when_empty": config.ready_when_empty,
        "scratch": config.scratch,
        "keyring": config.keyring(),
        "limits": RequestLimits.of(config),
        "strict": config.strict,
    }
    return Processor.initialize(ProcessorConfig.of(layout.session_options(config) | others))


class Frontend(Protocol):
    """The data ports, whether this process or workers serve them."""

    async def listen(self) -> None:
        """Serve until end() is called and requests in flight are answered."""

    def opened(self) -> None:
        """Note that models are loaded and requests are answered from now on. Called once, on any thread."""

    async def drain(self) -> None:
        """Note that the server is unready from now on; it continues to serve."""

    def drain_share(self, share: float) -> None:
        """Close this share of the connections with their next reply; clients connect elsewhere."""

    def end(self) -> None:
        """Stop accepting, and finish requests in flight."""

    def abort(self) -> None:
        """Stop without waiting for requests in flight."""


class Server:
    """One `freshet serve`. run() blocks; a first and a second stop() act like a first and a second signal."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        version: str = "",
        layout: Layout | None = None,
        fork_server: ForkServer | None = None,
        open_processor: Callable[[ServeConfig, Layout], Processor] = open_processor,
        out: TextIO | None = None,
        shutdown_watchdog: ShutdownWatchdog | None = None,
        start_s: float | None = None,
    ) -> None:
        """Bind the ports and create the parts of the server.

        Args:
            layout: The layout, if determined already.
            fork_server: The fork server of workers, started before this module was imported.
            open_processor: Opens the processor, if one process answers.
            out: Stream for the ready line; standard output if None.
            shutdown_watchdog: Armed when a signal asks the server to end.
            start_s: Monotonic second from which the ready line counts; now if None.
        """
        check_extensions(config)
        warn_of_unused(config)
        self._config = config
        self._layout = layout or Layout.here(config)
        self._bulk: ThreadPoolExecutor | None = None
        self._begin_watching: Callable[[], None] = lambda: None
        if self._layout.workers > 1:
            # Only beside worker processes may threads have a lower priority.
            from freshet_serving.serving.loading.priority import low_priority_pool, lower_priority

            self._bulk, self._begin_watching = low_priority_pool(), lower_priority
        self._out, self._shutdown_watchdog = out or sys.stdout, shutdown_watchdog
        self._start_s = time.monotonic() if start_s is None else start_s
        self._lifecycle: Lifecycle[Any]
        self._watcher: Watcher | None = None
        self._importer: Importer | None = None
        self._failed = False
        self._announced = False
        self._closing = threading.Lock()
        self._watching: Observers | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._access = AccessControl(config.admin_token, rate_limiter_memory(DATA_PLACE + self._layout.workers))
        self._credentials = CredentialFiles(config.credentials, self._access.take)
        make_admin: Callable[[ServerParts, socket.socket], AdminPort] | None = SERVER.only("admin_port")
        data = listen(config.host, config.http_port)
        admin = listen(config.admin_host, config.admin_port) if make_admin else None
        # Kept open without listening: it reserves the port while processes that listen on it come and go.
        self._reserved, self.grpc_address = reserve(config.host, config.grpc_port)
        self.http_address: tuple[str, int] = data.getsockname()[:2]
        self.admin_address: tuple[str, int] | None = admin.getsockname()[:2] if admin else None
        self._metrics: Metrics
        self._front: Frontend
        self._open: Callable[[], ModelHost]
        if self._layout.workers == 1:
            self._serve_alone(data, open_processor, version)
        else:
            self._supervise(data, version, fork_server)
        self._metrics.own.source(self._credentials.counted)
        self._admin: AdminPort | None = None
        if make_admin is not None and admin is not None:
            parts = ServerParts(
                config,
                self._layout.workers,
                self._lifecycle,
                self._metrics,
                self._access,
                self.http_address,
                self._bulk,
            )
            self._admin = make_admin(parts, admin)
        self._loader = threading.Thread(target=self._load, name="freshet-loader", daemon=True)

    def _serve_alone(
        self, data: socket.socket, open_processor: Callable[[ServeConfig, Layout], Processor], version: str
    ) -> None:
        config, options = self._config, self._config.front_options(version, processes=1)
        lifecycle: Lifecycle[InProcessHost] = Lifecycle()
        self._lifecycle = lifecycle
        self._metrics = metrics = Metrics(lifecycle)
        self._watching = watching = Observers(options, 0)
        watching.count(metrics.own)
        self._front = ports = DataPorts(
            lifecycle.part(lambda host: host.predictor),
            metrics,
            options,
            watching,
            http=data,
            grpc=self.grpc_address,
            guard=self._access.guard(DATA_PLACE) if config.api_keys else None,
            tls=self._access.certificates if config.tls_cert else None,
            control=ModelControl(
                lifecycle.processor,
                lambda: ports.dispatcher.served.snapshot(),
                lambda: lifecycle.processor().repository,
                config.groups,
            ),
        )

        def open_watched() -> InProcessHost:
            processor = open_processor(config, self._layout)
            watching.observe(processor.predictor, metrics.own)
            return processor.host

        self._open = open_watched

    def _supervise(self, data: socket.socket, version: str, fork_server: ForkServer | None) -> None:
        from freshet_serving.serving.workers.acceptor import Acceptor
        from freshet_serving.serving.workers.worker_pool import WorkerPool, WorkerSettings
        from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost
        from freshet_serving.serving.workers.worker_pool_metrics import WorkerPoolMetrics

        config = self._config
        settings = WorkerSettings(
            front=config.front_options(version, self._layout.workers),
            session_options=self._layout.session_options(config),
            remote=config.remote(),
            online_stores=config.stores(),
            grpc_address=self.grpc_address,
        )
        worker_pool = WorkerPool(self._layout.workers, settings, fork_server, self._access.memory)
        self._access.pass_on(worker_pool.update_credentials)
        self._front = acceptor = Acceptor(data, worker_pool)
        lifecycle: Lifecycle[WorkerPoolHost] = Lifecycle()
        self._lifecycle = lifecycle
        self._metrics = metrics = WorkerPoolMetrics(lifecycle, lambda: acceptor.host)

        control = ModelControl(
            lifecycle.processor,
            lambda: metrics.totals().get("served", {}),
            lambda: lifecycle.processor().repository,
            config.groups,
        )

        def open_host() -> WorkerPoolHost:
            acceptor.host = host = WorkerPoolHost(config, worker_pool, metrics.scrape, control)
            host.load_all(config.strict)
            return host

        self._open = open_host

    def run(self) -> int:
        """Serve until stopped, and return the exit code: 0, or 1 if the processor could not be opened."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        if self._shutdown_watchdog is not None:
            self._shutdown_watchdog.start()
        raise_descriptor_limit()
        return_large_blocks()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_default_executor(standing_pool(HELPERS, "freshet-helper"))
            runner.run(self._main())
        self._finish()
        return int(self._failed)

    def stop(self) -> None:
        """Begin the graceful shutdown; a second call cuts it short. Safe from any thread and from signal handlers."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_stop)

    def _on_stop(self, number: signal.Signals | None = None) -> None:
        # First, because everything below may fail for lack of memory.
        if self._shutdown_watchdog is not None:
            self._shutdown_watchdog.arm()
        if number is not None:
            meaning = "shutting down at once" if self._stopping.is_set() else "draining"
            log.info("%s: %s", number.name, meaning)
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._loop.add_signal_handler(number, self._on_stop, number)
            if self._shutdown_watchdog is not None:
                self._shutdown_watchdog.arm_on_signals(SIGNALS)
        serving = asyncio.create_task(self._front.listen())
        # It ends before shutdown only if a port cannot be opened.
        serving.add_done_callback(lambda _: self._stopping.set())
        if self._admin is not None:
            self._admin.start()
        self._credentials.start()
        self._loader.start()
        admin = f", admin on {_text(self.admin_address)}" if self.admin_address else ""
        log.info("listening on %s%s", _text(self.http_address), admin)
        await self._stopping.wait()
        self._lifecycle.drain()
        await self._front.drain()
        log.info("draining: not ready, serving for another %g s", self._config.drain_s)
        await self._serve_on()
        self._front.end()
        hurry = asyncio.create_task(self._hurry())
        await serving
        hurry.cancel()

    async def _serve_on(self) -> None:
        """Continue to serve for drain_s, so that load balancers notice.

        Connections are drained a part at a time, so that clients do not all connect elsewhere at once.
        """
        for left in range(DRAIN_STEPS, 0, -1):
            if self._hurried.is_set() or not self._config.drain_s:
                return
            self._front.drain_share(1 / left)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), self._config.drain_s / DRAIN_STEPS)

    async def _hurry(self) -> None:
        await self._hurried.wait()
        self._front.abort()

    def _load(self) -> None:
        try:
            processor = self._open()
        except Exception as error:
            if isinstance(error, FreshetError):
                log.error("cannot serve the repository: %s", error)
            else:
                log.exception("cannot serve the repository")
            self._failed = True
            self.stop()
            return
        importer = _importer(self._config, processor)
        processor.expect(importer.announce())
        # Loaded objects stay alive: freezing them leaves the garbage collector less to traverse between two requests.
        gc.collect()
        gc.freeze()
        with self._closing:
            if self._lifecycle.draining:
                processor.close()
                return
            self._lifecycle.open(processor)
            self._front.opened()
            self._importer = importer
            self._watcher = Watcher(
                lambda: importer.poll() + processor.poll(PATIENCE_S),
                self._config.poll_interval_s,
                lambda lines: self._announce(processor),
                begin=self._begin_watching,
            )
            self._watcher.start()
        self._announce(processor)
        if not self._announced:
            log.warning("not ready: %s", processor.stale or processor.missing or "not every process is up")

    def _announce(self, processor: ModelHost) -> None:
        """Print the ready line, the first time that every model is ready."""
        if not processor.ready or self._announced:
            return
        self._announced = True
        served = {name: model.pick() for name, model in sorted(processor.catalogue.items()) if model.routes.served}
        models = ",".join(f"{name}@{version.generation}" for name, version in served.items())
        took_s = time.monotonic() - self._start_s
        ports = f"http={_text(self.http_address)} grpc={self.grpc_address}"
        if self.admin_address is not None:
            ports += f" admin={_text(self.admin_address)}"
        layout = f"workers={self._layout.workers} models={models} {self._layout.text}"
        print(f"freshet: ready in {took_s:.2f} s {ports} {layout}", file=self._out, flush=True)

    def _finish(self) -> None:
        stuck = self._lifecycle.opened and self._lifecycle.processor().stuck
        timeout_s = 0.0 if self._hurried.is_set() or stuck else self._config.shutdown_timeout_s
        self._loader.join(timeout_s)
        if self._watcher is not None:
            self._watcher.stop(timeout_s)
        if self._importer is not None:
            self._importer.close()
        self._credentials.close()
        if self._admin is not None:
            self._admin.end()
        if self._bulk is not None:
            self._bulk.shutdown(wait=False, cancel_futures=True)
        with self._closing:
            processor = self._lifecycle.close()
        if processor is not None:
            processor.close()
        if self._watching is not None:
            self._watching.close()
        self._reserved.close()
        log.info("stopped")


def warn_of_unused(config: ServeConfig) -> None:
    """Log a line for each model whose kept users have bounds or a type where nothing of users is kept."""
    if config.user_state_mb:
        return
    for name, policy in config.policies().items():
        if policy.user_state is not None:
            log.warning("model.%s.user_state: nothing of users is kept, as user_state_mb is 0; set it", name)


def _importer(config: ServeConfig, host: ModelHost) -> Importer:
    """Return what brings in models that are no packages, or refuses them."""
    make = SERVER.only("importer")
    importer: Importer = make(config, host) if make else RefusedSources(host.repository.root, config.models, host)
    return importer


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
