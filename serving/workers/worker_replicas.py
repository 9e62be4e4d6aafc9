"""A version's replicas in all workers, as its writer sees them.

Invariants
- A frame that some worker cannot serve is served by none: prepare() returns when every worker has acknowledged it. One
  that has gone or does not answer is reaped, so certainly dead, before that.
- The arrays that a worker holds are known only once it has answered; until then they are sent to it anew.
- The lock is the version's: methods run under it, except for on_exit() and what workers report.
"""

from __future__ import annotations

import weakref
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.versions.replica import Frame
from freshet_serving.processor.versions.row_scoring import parse_scores
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import Figure, PreviewResult, RequestScores
from freshet_serving.serving.workers.channel import ChannelClosed, Message
from freshet_serving.serving.workers.frame_transfer import FrameSender, OutgoingFrame
from freshet_serving.serving.workers.worker_counts import Totals
from freshet_serving.serving.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from freshet_serving.processor.running.split_choice import SplitCost

ANSWER_TIMEOUT_S = 300.0
PREVIEW_TIMEOUT_S = 0.5
SCORE_TIMEOUT_S = 2.0


class ReplicasHost(Protocol):
    """The host of the models (serving.workers.worker_pool_host), as replicas need it."""

    @property
    def totals(self) -> Totals:
        """The sums that the workers have reported."""

    def register(self, replicas: WorkerReplicas) -> tuple[WorkerProcess, ...]:
        """Register a version about to be opened; return the workers that open it now. Raises NotReady without one."""

    def unregister(self, replicas: WorkerReplicas) -> None:
        """Forget a version that is closed."""

    def reap(self, worker: WorkerProcess) -> None:
        """Return once the process is dead and everything that it held is released."""


class WorkerReplicas:
    """A version's replicas in all workers: implements processor.versions.replica.Replicas."""

    def __init__(self, host: ReplicasHost, key: int, version: ServedVersion) -> None:
        """Prepare to send a version to workers, which know it by the key."""
        self.key, self._host = key, host
        # A weak reference: the version holds this object, and the collector ignores what was loaded at start, so a
        # cycle would never be freed and its files would stay mapped.
        self._version, self._control = weakref.ref(version), version.control
        self._sender = FrameSender(version.files, version.control)
        self._held: dict[WorkerProcess, frozenset[int]] = {}
        self._settled: OutgoingFrame | None = None

    @property
    def cost(self) -> Mapping[int, float]:
        """Measured cost by bucket, as last reported: the mean over the workers."""
        reported: dict[int, list[float]] = {}
        for gauges in self._host.totals.gauges().values():
            for bucket, cost in gauges["costs"].get(str(self.key), []):
                reported.setdefault(bucket, []).append(cost)
        return {bucket: sum(costs) / len(costs) for bucket, costs in sorted(reported.items())}

    @property
    def computes(self) -> Mapping[int, str]:
        """Backend and precision by bucket, as a worker last reported them; they are the same in all."""
        every = (gauges["computes"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return dict(next((computes for computes in every if computes), []))

    @property
    def user_split_thresholds(self) -> Sequence[int]:
        """Thresholds of the user/candidate split, as one worker last reported them; each worker measures its own."""
        every = (gauges["parts_turns"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        return next((turns for turns in every if turns), ())

    @property
    def splits(self) -> Sequence[SplitCost]:
        """Costs of requests whole and divided, as one worker last reported it."""
        every = (gauges["splits"].get(str(self.key)) for gauges in self._host.totals.gauges().values())
        reported = next((splits for splits in every if splits), ())
        if not reported:
            return ()
        # Loaded with the first version that is divided.
        from freshet_serving.processor.running.split_choice import SplitCost

        return [SplitCost(*each) for each in reported]

    def prepare(self, frame: Frame) -> None:
        """Have all workers prepare a frame. Raises NotReady if there is no worker at all."""
        if self._settled is None:
            self._open(frame)
            return
        self._offer(self._sender.number(frame), list(self._held))

    def preview(
        self, frame: int, epoch: int, generation: Generation, max_rows: int, max_s: float
    ) -> PreviewResult | None:
        """Return the preview of the first worker that has one.

        Args:
            frame: Number of the prepared frame.
            epoch: Epoch whose rows are staged.
            max_rows: Rows that a worker scores at most.
            max_s: Seconds that a worker spends at most.
        """
        staged = {"frame": frame, "epoch": epoch, "step": generation.step, "digest": generation.digest}
        message = {**staged, "rows": max_rows, "seconds": max_s}
        for answer in self._answers("preview", message, PREVIEW_TIMEOUT_S + max_s):
            if answer["preview"] is not None:
                rows, seconds, figures = answer["preview"]
                return PreviewResult(rows, seconds, [Figure(*figure) for figure in figures])
        return None

    def kept(self) -> bytes:
        """Return the kept requests of the worker that has most."""
        answers = self._answers("kept", {}, PREVIEW_TIMEOUT_S)
        return max((b64decode(answer["kept"]) for answer in answers), key=len, default=b"")

    def remember(self, requests: bytes) -> None:
        self._tell("remember", {"requests": b64encode(requests).decode()})

    def score(self, requests: bytes, max_s: float) -> RequestScores | None:
        """Return the scores of kept requests by the first worker that answers; one spends at most `max_s` seconds."""
        message = {"requests": b64encode(requests).decode(), "seconds": max_s}
        for answer in self._answers("score", message, SCORE_TIMEOUT_S + max_s):
            scores = answer["scores"]
            return None if scores is None else parse_scores(b64decode(scores))
        return None

    def example(self) -> Mapping[str, Column | str] | None:
        """Return the example of the first worker that has one."""
        for answer in self._answers("example", {}, PREVIEW_TIMEOUT_S):
            if answer["example"]:
                return dict(answer["example"])
        return None

    def forget(self, frame: int, last: int | None = None) -> None:
        self._tell("forget", {"frame": frame, "last": last})

    def close(self) -> None:
        self._host.unregister(self)
        self._tell("close", {})
        self._held, self._settled = {}, None

    def bring(self, worker: WorkerProcess) -> None:
        """Give a new worker the version as it stands.

        Raises ChannelClosed if it has gone, FreshetError if it cannot serve the version.
        """
        version = self._version()
        if version is None:
            return
        with version.lock:
            if self._settled is not None:
                # The frame prepared last may never have been served; the worker needs the served one.
                served = self._sender.number(version.change.frame)
                for answer in self._ask(worker, served):
                    answer.result(ANSWER_TIMEOUT_S)
                self._held[worker] = served.numbers

    def on_exit(self, worker: WorkerProcess) -> None:
        """Release what a dead process held; called without the lock."""
        self._control.clear(worker.slot)
        self._held.pop(worker, None)

    def _open(self, frame: Frame) -> None:
        workers = self._host.register(self)
        try:
            self._offer(self._sender.number(frame), workers)
        except BaseException:
            self.close()
            raise

    def _offer(self, outgoing: OutgoingFrame, workers: Iterable[WorkerProcess]) -> None:
        """Ask all workers at once to prepare the frame; raise a refusal."""
        requests = []
        for worker in workers:
            try:
                held = self._held.get(worker)
                requests.append((worker, held, self._ask(worker, outgoing)))
            except ChannelClosed:
                self._lose(worker)
        refused: FreshetError | None = None
        for worker, held, answers in requests:
            try:
                for answer in answers:
                    answer.result(ANSWER_TIMEOUT_S)
            except (ChannelClosed, TimeoutError):
                self._lose(worker)
            except FreshetError as error:
                refused = error
                if held is not None:
                    self._held[worker] = held
            else:
                self._held[worker] = outgoing.numbers
        if refused is not None:
            raise refused
        if not self._held:
            raise NotReady("workers: no process is up; try again")
        self._settled = outgoing
        self._sender.settle(outgoing)

    def _ask(self, worker: WorkerProcess, outgoing: OutgoingFrame) -> list[Future[Message]]:
        """Ask a worker to prepare the frame, after opening the version if it does not have it yet."""
        answers, held = [], self._held.get(worker)
        if held is not None:
            # Until it answers, its arrays are unknown, and they stay unknown if the answer is not read.
            self._held[worker] = frozenset()
        if held is None:
            message, fds = self._sender.opening(worker.slot)
            answers.append(worker.ask("open", {**message, "version": self.key}, fds))
        message, fds = self._sender.message(outgoing, held or frozenset())
        answers.append(worker.ask("frame", {**message, "version": self.key, "first": held is None}, fds))
        return answers

    def _answers(self, op: str, message: Message, timeout_s: float) -> Iterator[Message]:
        """Ask one worker after the other, and yield the answers of those that answer in time."""
        for worker in list(self._held):
            try:
                answer = worker.ask(op, {**message, "version": self.key}).result(timeout_s)
            except (ChannelClosed, TimeoutError):
                continue
            yield answer

    def _tell(self, op: str, message: Message) -> None:
        for worker in list(self._held):
            try:
                worker.tell(op, {**message, "version": self.key})
            except ChannelClosed:
                self._lose(worker)

    def _lose(self, worker: WorkerProcess) -> None:
        """Reap a worker that has gone or does not answer."""
        self._host.reap(worker)
        self._held.pop(worker, None)


def key_of(version: ServedVersion) -> int:
    replicas = version.replicas
    assert isinstance(replicas, WorkerReplicas), "connect() created them"
    return replicas.key
