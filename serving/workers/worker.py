"""Run one worker process: its data ports, sessions and replicas, directed by the supervisor.

Threads: the main thread runs the event loop, which answers requests and reads the channel. `freshet-changes-n` prepare
frames (map buffers, pack dense weights), one after the other within a version. `freshet-changes-long-n` open versions,
at low priority (serving.loading.priority). `freshet-session-n` are helpers (processor.sessions.group), or the sessions
themselves if these have threads. Sessions read what a flip changes beyond a frame from the control words, without a
message.

Invariants
- Messages take effect in the order in which they were sent: routes and connections on the loop, changes of one version
  on the change threads. Warm-up of one version delays no frame of another.
- Tables are mapped read-only. The shared memory that a worker writes is its own words: its pins, how many of its
  connections have ended, how many of its threads compute, and its heartbeat.
- A worker gets HTTP connections, and listens for gRPC, only after it has every version and the routes. Otherwise it
  would refuse requests that another worker answers.
- A worker whose supervisor has gone ends at once: no process would flip, replace or drain it.
- A worker out of descriptors takes no connection, and reads its channel again once it has one. A change that needs more
  descriptors is refused, and the served state stays.

Rejected: PR_SET_PDEATHSIG (it fires when the thread that spawned the worker ends, not the process).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.cores import Occupancy, ResourceLimits
from freshet_serving.processor.errors import FreshetError, NotReady, shortage
from freshet_serving.processor.features.input_lookup import open_lookups
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.memory import return_large_blocks
from freshet_serving.processor.sessions.placement import Groups
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.session_options import GroupOptions, SessionConfig
from freshet_serving.processor.tables.remote_rows import RemoteConfig, open_remote_tables
from freshet_serving.serving.access.credentials import DATA_PLACE, AccessControl, Credentials
from freshet_serving.serving.data_ports import DataPorts
from freshet_serving.serving.front.resource_limits import raise_descriptor_limit
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.guarded_protocol import GuardedProtocol
from freshet_serving.serving.http.port import SWITCH_INTERVAL_S, new_loop
from freshet_serving.serving.http.protocol import PredictProtocol
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.loading.priority import lower_priority
from freshet_serving.serving.telemetry.logs import enable_faulthandler, log_to_stderr
from freshet_serving.serving.telemetry.metrics import Counts
from freshet_serving.serving.telemetry.observers import Observers
from freshet_serving.serving.workers.array_packing import ArrayUnpacker
from freshet_serving.serving.workers.channel import Channel, ChannelClosed, DescriptorsExhausted, Message, refusal
from freshet_serving.serving.workers.counter_layout import COUNTED, PROCESS, CounterWriter
from freshet_serving.serving.workers.frame_transfer import FrameReceiver
from freshet_serving.serving.workers.keyed_executor import KeyedExecutor
from freshet_serving.serving.workers.routed_engine import RoutedEngine
from freshet_serving.serving.workers.worker_counts import PLANNED, Report, evidence_key, observed

if TYPE_CHECKING:
    from freshet_serving.processor.running.user_states import ProcessStates

log = logging.getLogger("freshet.worker")

REPORT_INTERVAL_S = 1.0
BEAT_INTERVAL_S = 0.25
# Number of versions whose frames are prepared in parallel.
CHANGES = 4
SCRAPE_TIMEOUT_S = 10.0
# Loading and warming a version takes time.
CONTROL_TIMEOUT_S = 600.0
STARVED_RETRY_S = 0.1


class WorkerMetrics(Counts):
    """Counts of this worker process, and the metrics of all processes."""

    def __init__(self, scrape: Callable[[], bytes]) -> None:
        super().__init__()
        self._scrape = scrape

    def scrape(self) -> bytes:
        return self._scrape()


class CountedProtocol(PredictProtocol):
    """A connection that reports its end."""

    def __init__(self, *args: Any, ended: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lost = ended

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost()


class GuardedCountedProtocol(CountedProtocol, GuardedProtocol):
    """A CountedProtocol that checks API keys."""


class Worker:
    """A worker process, made from its end of the channel and its "settings" message (WorkerSettings, and more)."""

    def __init__(self, channel: Channel, settings: Message, unpacker: ArrayUnpacker) -> None:
        self._channel, self._slot = channel, int(settings["seat"])
        options = FrontendOptions(**settings["front"])
        self._ended_connections, computing, beats = unpacker.unpack(settings["board"])
        self._access = AccessControl(options.admin_token, unpacker.unpack(settings["meters"]))
        self._clock = SystemClock()
        self._occupancy = Occupancy(ResourceLimits.here().cores, computing, self._slot, beats)
        groups = Groups(SessionConfig.of(settings["session_options"]), self._clock, self._occupancy, alone=False)
        self._predictor = Predictor(groups, self._clock, RequestLimits.of(options))
        self._engine = RoutedEngine(self._predictor)
        self._lifecycle: Lifecycle[RoutedEngine] = Lifecycle()
        self._metrics = WorkerMetrics(self._scrape)
        self._layout = CounterWriter()
        self._watching = Observers(options, self._slot)
        self._watching.count(self._metrics)
        self._watching.observe(self._predictor, self._metrics)
        self._ports = DataPorts(
            self._lifecycle.part(lambda engine: engine.predictor),
            self._metrics,
            options,
            self._watching,
            http=None,
            grpc=settings["grpc_address"],
            control=self._control,
            guard=self._access.guard(DATA_PLACE + self._slot) if options.api_keys else None,
            tls=self._access.certificates if options.tls_cert else None,
            protocol=GuardedCountedProtocol if options.api_keys else CountedProtocol,
            protocol_options={"ended": self._connection_ended},
        )
        self._changes = KeyedExecutor(CHANGES, "freshet-changes", lower_priority)
        self._receivers: dict[int, FrameReceiver] = {}
        remote = settings["remote"]
        self._remote = open_remote_tables(RemoteConfig(**remote) if remote else None, self._clock)
        self._lookups = open_lookups(settings["online_stores"], self._clock)
        self._states: ProcessStates | None = None
        if settings["states"]:
            from freshet_serving.processor.running.user_states import open_states

            memory = unpacker.unpack(settings["states"])
            self._states = open_states(memory, len(self._ended_connections), self._slot, self._clock)
            self._predictor.users = self._states.users
        self._adopting: set[asyncio.Task[None]] = set()
        self._calls: asyncio.Task[None] | None = None
        self._asked: dict[int, Future[Message]] = {}
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Serve until the supervisor orders the end."""
        loop = self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._ports.serve_http())
        serving.add_done_callback(lambda _: self._ports.http.listening.set())
        await self._ports.http.listening.wait()
        loop.add_reader(self._channel.fileno(), self._read)
        self._channel.send({"op": "hello"})
        self._report_regularly()
        self._beat_regularly()
        await serving
        loop.remove_reader(self._channel.fileno())
        self._changes.close()
        self._predictor.close()
        self._watching.close()
        self._lookups.close()

    def _read(self) -> None:
        try:
            while not self._starved():
                received = self._channel.receive(wait=False)
                if received is None:
                    return
                message, fds = received
                try:
                    self._act(message, fds)
                except (MemoryError, RuntimeError, OSError):
                    # Unanswered, it would keep the supervisor, and every later change, waiting for ever.
                    log.exception("no memory for the supervisor's message: %s", message["op"])
                    self._reply(message, error=[NotReady.__name__, "a worker is short of memory"])
        except ChannelClosed:
            log.error("the supervisor has exited")
            os._exit(1)
        except DescriptorsExhausted as starved:
            self._refuse(starved.message)
        # Connections wait in the channel, then at the supervisor, which hands them to other workers.
        self._loop.remove_reader(self._channel.fileno())
        self._loop.call_later(STARVED_RETRY_S, self._read_again)

    def _read_again(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._read)

    def _starved(self) -> bool:
        try:
            os.close(os.dup(self._channel.fileno()))
        except OSError:
            return True
        return False

    def _refuse(self, message: Message) -> None:
        """Refuse a message that arrived without its descriptors."""
        log.error("no file descriptors are left for the supervisor's message: %s", message["op"])
        if message["op"] == "adopt":
            self._connection_ended()
        self._reply(message, error=[NotReady.__name__, "a worker cannot open more files"])

    def _act(self, message: Message, fds: list[int]) -> None:
        op = message["op"]
        if op == "adopt":
            task = self._loop.create_task(self._adopt(fds[0]))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)
        elif op == "shed":
            self._ports.drain_some(message["count"])
        elif op == "release":
            self._ports.drain_share(message["share"])
        elif op == "unready":
            self._notice(message["seats"], message["stale"])
            self._engine.concerns = tuple(message["concerns"])
        elif op in ("open", "frame", "preview", "kept", "remember", "score", "example", "forget", "close"):
            first = op == "open" or (op == "frame" and message["first"])
            self._changes.submit(message["version"], lambda: self._change(message, fds), long=first)
        elif op == "routes":
            self._reroute(message)
            if self._calls is None:
                self._calls = self._loop.create_task(self._take_calls(message))
            else:
                self._reply(message)
        elif op == "credentials":
            self._access.take(Credentials.of(message))
        elif op == "erase":
            self._changes.submit(op, lambda: self._change(message, fds), long=True)
        elif op == "drain":
            self._lifecycle.drain()
            self._reply(message)
        elif op == "resize":
            self._resize(message)
        elif op == "place":
            self._predictor.groups.planning.place(message["placements"])
            self._reply(message)
        elif op == "report":
            self._tell_report()
            self._reply(message)
        elif op == "reply":
            asked = self._asked.get(message["id"])
            if asked is not None:
                asked.set_result(message)
        elif op == "end":
            self._loop.create_task(self._end())
        elif op == "abort":
            self._ports.abort()

    async def _take_calls(self, message: Message) -> None:
        """Start gRPC with the first routes: as soon as a worker listens, the kernel sends it connections."""
        try:
            await self._ports.start_grpc()
        except FreshetError as error:
            log.error("cannot serve gRPC calls: %s", error)
            os._exit(1)
        self._reply(message)

    async def _adopt(self, fd: int) -> None:
        connection = socket.socket(fileno=fd)
        try:
            await self._ports.http.adopt(connection)
        except OSError:
            connection.close()
            self._connection_ended()

    async def _end(self) -> None:
        self._ports.http.end_handshakes()
        await asyncio.gather(*self._adopting, return_exceptions=True)
        self._ports.end()

    def _notice(self, worker_slots: list[int], stale: str) -> None:
        """Set readiness from the slots of silent workers, and why the served versions are too old ("" if they are not).

        Clients that keep connections to a silent worker hang, so the whole server reports itself unready.
        """
        silent = (
            f"worker {worker_slots[0]} does"
            if len(worker_slots) == 1
            else f"workers {', '.join(map(str, worker_slots))} do"
        )
        self._lifecycle.block_readiness(f"server: {silent} not answer" if worker_slots else stale)

    def _connection_ended(self) -> None:
        self._ended_connections[self._slot] += 1

    def _reroute(self, message: Message) -> None:
        self._engine.reroute(message, self._receivers)
        if message["draining"]:
            self._lifecycle.drain()
        if message["loaded"] and not self._lifecycle.opened:
            self._lifecycle.open(self._engine)
            # Loaded objects stay alive: freezing them leaves the collector less to walk between two requests.
            gc.collect()
            gc.freeze()

    def _resize(self, message: Message) -> None:
        try:
            self._predictor.groups.resize(message["sessions"], message["group"])
        except FreshetError as error:
            self._reply(message, error=[type(error).__name__, str(error)])
        else:
            # The caller reads the reports next.
            self._tell_report()
            self._reply(message)

    def _tell_report(self) -> None:
        self._channel.send({"op": "report", "report": self._report()})

    def _change(self, message: Message, fds: list[int]) -> None:
        """Apply a change and reply; if the reply cannot be sent, reply with an error, since the supervisor waits."""
        try:
            with ArrayUnpacker(fds) as unpacker:
                answer = self._apply(message, unpacker)
            self._reply(message, **answer)
        except FreshetError as error:
            self._reply(message, error=[type(error).__name__, str(error)])
        except Exception as error:
            if (short := shortage(error)) is not None:
                self._reply(message, error=[type(short).__name__, f"worker {self._slot}: {short}"])
                return
            log.exception("could not change a version")
            self._reply(message, error=[type(error).__name__, "a worker could not apply the change"])

    def _apply(self, message: Message, unpacker: ArrayUnpacker) -> Message:
        """Apply a change; return the fields of the reply."""
        op = message["op"]
        if op == "erase":
            return {"erased": self._erase(message["user"])}
        key = message["version"]
        if op == "open":
            self._receivers[key] = FrameReceiver(
                message, unpacker, self._options_of, self._clock, self._remote, self._lookups, self._states
            )
        elif op == "frame":
            self._receivers[key].prepare(message, unpacker)
        elif op == "preview":
            return {"preview": self._receivers[key].preview(message)}
        elif op == "kept":
            return {"kept": self._receivers[key].kept()}
        elif op == "remember":
            self._receivers[key].remember(message)
        elif op == "score":
            return {"scores": self._receivers[key].score(message)}
        elif op == "example":
            return {"example": self._receivers[key].example()}
        elif op == "forget":
            self._receivers[key].replica.forget(message["frame"], message["last"])
        else:
            self._receivers.pop(key, None)
        return {}

    def _erase(self, user: Message) -> list[Any]:
        # Loaded when a person asks.
        from freshet_serving.processor.versions.erasure import ErasedUser, erase_once

        counts, failed = erase_once(ErasedUser.of_json(user))
        return [dict(counts), failed]

    def _options_of(self, model: str) -> GroupOptions:
        return self._predictor.groups.of(model).options

    def _reply(self, message: Message, **fields: Any) -> None:
        """Reply to a request; do nothing for a message that expects no reply."""
        if "id" in message:
            try:
                self._channel.send({"op": "reply", "id": message["id"], **fields})
            except ChannelClosed:
                log.error("the supervisor has exited")
                os._exit(1)

    def _report(self) -> Report:
        groups = self._predictor.groups
        statistics = groups.statistics()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        replicas = {str(key): receiver.replica for key, receiver in list(self._receivers.items())}
        lookups = {key: groups.counts(replica).tolist() for key, replica in replicas.items()}
        sketches = {key: groups.sketch(replica).to_json() for key, replica in replicas.items()}
        keys = {replica: key for key, replica in replicas.items()}
        evidence = {
            observed(name): {
                evidence_key([keys[replica] for replica in about]): numbers
                for about, numbers in observer.evidence().items()
                if keys.keys() >= set(about)
            }
            for name, observer in self._predictor.observers.offered.items()
        }
        costs = {key: list(replica.cost.items()) for key, replica in replicas.items()}
        computes = {key: list(replica.computes.items()) for key, replica in replicas.items()}
        user_split_thresholds = {key: list(replica.user_split_thresholds) for key, replica in replicas.items()}
        counted = {PROCESS: self._metrics.counted(), **{key: replica.counted() for key, replica in replicas.items()}}
        work = {name: asdict(group.work) for name, group in statistics.items()}
        now = {name: [group.sessions, group.queue_rows] for name, group in statistics.items()}
        served = self._ports.dispatcher.served.snapshot()
        counters = {
            **self._metrics.snapshot(),
            "groups": work,
            "lookups": lookups,
            "sketches": sketches,
            **evidence,
            "served": served,
        }
        gauges = {
            "groups": now,
            "costs": costs,
            "computes": computes,
            "parts_turns": user_split_thresholds,
            "splits": {key: [list(each) for each in replica.splits] for key, replica in replicas.items()},
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }
        if groups.planning is not None:
            counters[PLANNED], gauges[PLANNED] = groups.planning.counts(), groups.planning.costs()
        return {"counters": counters, COUNTED: self._layout.write(counted), "gauges": gauges}

    def _report_regularly(self) -> None:
        self._loop.call_later(REPORT_INTERVAL_S, self._report_regularly)
        if not self._channel.send_nowait({"op": "report", "report": self._report()}):
            self._layout.lost()

    def _beat_regularly(self) -> None:
        self._loop.call_later(BEAT_INTERVAL_S, self._beat_regularly)
        self._occupancy.beat()

    def _scrape(self) -> bytes:
        """Return the metrics of all processes, from the supervisor; run on a thread of its own."""
        text: str | None = self._ask({"op": "scrape"}, SCRAPE_TIMEOUT_S)["text"]
        if text is None:
            raise FreshetError("metrics: could not be rendered; see the server's log")
        return text.encode()

    def _control(self, operation: str, arguments: Message) -> Message:
        """Have the supervisor perform a control operation; run on a thread of its own."""
        answer = self._ask({"op": "control", "operation": operation, "arguments": arguments}, CONTROL_TIMEOUT_S)
        if "error" in answer:
            raise refusal(*answer["error"])
        result: Message = answer["result"]
        return result

    def _ask(self, message: Message, timeout_s: float) -> Message:
        """Return the supervisor's answer. Raises NotReady if it does not answer."""
        asked: Future[Message] = Future()
        number = next(self._numbers)
        self._asked[number] = asked
        try:
            self._channel.send({**message, "id": number})
            return asked.result(timeout_s)
        except (ChannelClosed, TimeoutError):
            raise NotReady(f"{message['op']}: the supervisor does not answer") from None
        finally:
            self._asked.pop(number, None)


def main(fd: int) -> int:
    channel = Channel(socket.socket(fileno=fd))
    try:
        received = channel.receive()
    except ChannelClosed:
        return 1
    assert received is not None, "a blocking receive returns a message"
    settings, fds = received
    log_to_stderr(settings["front"]["log_level"], settings["front"]["log_format"], f"worker-{settings['seat']}")
    enable_faulthandler()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_descriptor_limit()
    return_large_blocks()
    with ArrayUnpacker(fds) as unpacker:
        worker = Worker(channel, settings, unpacker)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(worker.run())
    return 0
