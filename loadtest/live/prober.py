"""Sees when a generation is first served: one small predict request after another over one connection.

It lives apart from the load generator's process: a generator that is busy would see replies late. Every reply's
score is checked against the generation that it names, as the load's are.
"""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import numpy as np

from loadtest.live.score_plan import MixedGenerations, ScorePlan, WrongReply
from loadtest.load.encoding import GENERATION, HEADER_LENGTH, Signature, decode, encode_kserve
from loadtest.load.measurements import Measurements

INTERVAL_S = 0.004
RECONNECT_S = 0.05
TIMEOUT_S = 30.0


class Prober:
    """A thread that polls from start() to stop(). recorder: requests of kind "probe", and first_seen_s."""

    def __init__(self, host: str, port: int, signature: Signature, plan: ScorePlan) -> None:
        self._plan = plan.one_row()
        self._request = encode_kserve(signature, self._plan.columns(0), 0)
        self._output = signature.outputs[0]
        self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="prober", daemon=True)
        self._replies_s: list[float] = []
        self.recorder = Measurements(time.monotonic())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._connection.close()

    def wait_until_seen(self, generation: str, timeout_s: float) -> bool:
        """Whether a reply has named the generation before the time is over."""
        end_s = time.monotonic() + timeout_s
        while generation not in self.recorder.first_seen_s and time.monotonic() < end_s:
            self._stop.wait(INTERVAL_S)
        return generation in self.recorder.first_seen_s

    def summary(self) -> dict[str, Any]:
        return {**self.recorder.document(), "interval_ms": self.interval_ms()}

    def interval_ms(self) -> dict[str, float]:
        """The interval between replies, p50 and p99: what freshness is resolved to."""
        apart = np.diff(self._replies_s) * 1e3
        if not len(apart):
            return {"p50": 0.0, "p99": 0.0}
        return {f"p{p}": round(float(np.percentile(apart, p)), 3) for p in (50, 99)}

    def _poll(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            start_s = time.monotonic()
            fault, mixed = "", False
            try:
                self._ask()
            except WrongReply as error:
                fault, mixed = str(error), isinstance(error, MixedGenerations)
            except (OSError, http.client.HTTPException) as error:
                fault = f"no reply: {type(error).__name__}"
            end_s = time.monotonic()
            self.recorder.request("probe", end_s, end_s - start_s, fault, mixed, load=False)
            if fault and not mixed:
                self._connection.close()
                self._stop.wait(RECONNECT_S)

    def _ask(self) -> None:
        request = self._request
        self._connection.request("POST", request.path, request.body, request.headers)
        response = self._connection.getresponse()
        body = response.read()
        seen_s = time.monotonic()
        if response.status != 200:
            raise WrongReply(f"status {response.status}: {body[:200].decode('utf-8', 'replace')}")
        generation = response.getheader(GENERATION)
        if generation:
            self.recorder.seen(generation, seen_s)
        self._replies_s.append(seen_s)
        try:
            scores = decode(request, body, response.getheader(HEADER_LENGTH), self._output)
        except ValueError as error:
            raise WrongReply(str(error)) from None
        self._plan.check(0, generation, scores)
