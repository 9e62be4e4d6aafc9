"""Report a run's progress to its servers: replace `<model>/trainer.json` in the repository every few seconds.

Invariants
- Training never waits for a report or fails because of one: a thread writes them, and skips one that cannot be written.
- The last report says how the run ended. The command waits for it at most END_S; a killed run becomes silent.
- A report has no user data and nothing that names the machine: the run's name is random, errors end before their value
  (without_values), and foreign errors are left out.
- Nothing is written before the model has its first version, and so a folder.

Costs: a file of about 1 KB each EVERY_S, fsynced; in an object store one PUT, 260,000 a month for an endless run.
Mirrors do not list because of it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from freshet_serving.models.runs.train_metrics import RunStatus
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository import (
    Repository,
    TrainerReport,
    TrainerState,
    open_repository,
    without_values,
)

EVERY_S, END_S = 10.0, 10.0
RATE_REPORTS = 7
"""Number of newest reports that rows a second are measured over: a minute."""
REFUSED_CODE = 3
"""Exit code of a run whose version the gate has refused."""


class Heartbeat:
    """Reports of one run, from the block's begin to its end; `status` returns its status once there is a run."""

    def __init__(
        self,
        repository: str,
        model: str,
        follow: bool,
        unix_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet; `follow` if the run has no end. Clocks: unix_s for people, now_s for rates."""
        self._address, self._model, self._unix_s, self._now_s = repository, model, unix_s, now_s
        self._repository: Repository | None = None
        self.status: Callable[[], RunStatus] = RunStatus
        self.stopping = False
        # Written by the training thread; the report by the heartbeat's.
        self._end: tuple[TrainerState, str] | None = None
        self._report = TrainerReport(
            secrets.token_hex(8), TrainerState.RUNNING, 0, EVERY_S, follow, started_at=unix_s(), written_at=unix_s()
        )
        self._learned: deque[tuple[float, int]] = deque([(now_s(), 0)], RATE_REPORTS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freshet-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)
        self._ended.set()
        self._thread.join(END_S)

    def stop(self, stop: Callable[[], None]) -> None:
        """Ask the run to stop through `stop`: it ends without an error, and has not finished."""
        self.stopping = True
        stop()

    def end(self, error: BaseException | None) -> None:
        """Set the state in which the run has ended, by the error or None."""
        if self.stopping or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self._end = TrainerState.STOPPED, ""
        elif getattr(error, "exit_code", 0) == REFUSED_CODE:
            self._end = TrainerState.REFUSED, str(error)
        elif error is None:
            self._end = TrainerState.FINISHED, ""
        elif isinstance(error, FreshetError):
            self._end = TrainerState.FAILED, without_values(str(error))
        else:
            self._end = TrainerState.FAILED, "an unexpected error; its output says which"

    def write(self) -> None:
        report = self._next()
        try:
            if self._repository is None:
                self._repository = open_repository(self._address)
            self._repository.keep_trainer(self._model, report.dump())
        except (FreshetError, OSError):
            return

    def _run(self) -> None:
        self.write()
        while not self._ended.wait(EVERY_S):
            self.write()
        self.write()

    def _next(self) -> TrainerReport:
        status, now_s = self.status(), self._now_s()
        self._learned.append((now_s, status.learned_rows))
        (first_s, first), (last_s, last) = self._learned[0], self._learned[-1]
        state, text = self._end or (TrainerState.RUNNING, "")
        refused = state is TrainerState.REFUSED
        window = {"auc": status.window_auc, "calibration": status.window_calibration}
        self._report = replace(
            self._report,
            state=state,
            error="" if refused else text,
            beat=self._report.beat + 1,
            written_at=self._unix_s(),
            rows=status.learned_rows,
            rows_per_s=(last - first) / (last_s - first_s) if last_s > first_s else 0.0,
            waiting_rows=status.waiting_rows,
            version=status.version,
            step=status.step,
            published_at=status.published_at,
            held_out=dict(status.held_out),
            window=window,
            gate=text if refused else status.gate,
            held=status.held,
            trouble=status.trouble,
            store_trouble=status.store_trouble,
            stale_tables=status.stale_tables,
        )
        return self._report
