"""Report a run's progress to its servers: replace `<model>/trainer.json` in the repository every few seconds.

Invariants
- Training never waits for a report and never fails because of one: a thread of its own writes them, and one that
  cannot be written is skipped. The next one says the same, and servers count the age of the newest that arrived.
- The last report of a run says how it ended. The command waits for it at most END_S; a run that is killed writes none
  and becomes silent.
- The report has no data of users and nothing that names the machine: the run's name is random, errors are cut before
  the value that they got (without_values), and those that are not ours are not told at all.
- Nothing is written before the model has its first version, and so a folder.

Costs: a file of about 1 KB each EVERY_S, fsynced; in an object store one PUT, 260,000 a month for a run without an end.
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
"""Number of newest reports over which rows a second are measured: a minute."""
REFUSED_CODE = 3
"""Exit code of a run whose version the gate has refused; its error is the verdict."""


class Heartbeat:
    """The reports of one run, from the block's begin to its end.

    Attributes:
        status: Returns the run's status, once there is a run.
        stopping: True if the run was asked to stop.
    """

    def __init__(
        self,
        repository: str,
        model: str,
        follow: bool,
        unix_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet.

        Args:
            repository: Address of the repository.
            follow: True if the run has no end.
            unix_s: Clock for times that people read.
            now_s: Clock for rates.
        """
        self._address, self._model, self._unix_s, self._now_s = repository, model, unix_s, now_s
        self._repository: Repository | None = None
        self.status: Callable[[], RunStatus] = RunStatus
        self.stopping = False
        # Written by the thread that trains; the report by the heartbeat's own.
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
        """Ask the run to stop: it ends without an error, and has not finished.

        Args:
            stop: Asks it.
        """
        self.stopping = True
        stop()

    def end(self, error: BaseException | None) -> None:
        """Set the state in which the run has ended.

        Args:
            error: What ended it; None if it returned.
        """
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
        """Write a report of the run as it is now, if the repository can be written."""
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
