"""Locust users for a Freshet server: many that ask for predictions, one that brings a delta every second.

    locust -f loadtest/live/locustfile.py --host http://127.0.0.1:8501

Give it --deltas FOLDER to have deltas published while the load runs. With --plan, written by
`python -m loadtest`, users send the plan's requests and check every score; without it they draw requests for
any model from its metadata. docs/how-to/loadtest.md explains the options and the figures.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, constant, constant_throughput, events, task

from loadtest.live.delta_files import generation_of, pending, publish
from loadtest.live.questions import is_json, requests
from loadtest.live.score_plan import MixedGenerations, ScorePlan, WrongReply
from loadtest.load.encoding import (
    GENERATION,
    HEADER_LENGTH,
    Request,
    Signature,
    decode,
    encode_kserve,
    encode_tfs,
    parse_metadata,
)
from loadtest.load.measurements import WINDOW_S, Measurements, freshness
from loadtest.reports.report import freshness_lines, freshness_ms

DRAWN_REQUESTS = 512
IDLE_S = 0.05
LOOKUP_TIMEOUT_S = 10.0
WAYS = ("admin", "folder", "both")


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    add = parser.add_argument_group("Freshet").add_argument
    add("--model", default="bench", help="The model to ask. [bench]")
    add("--rows", type=int, default=64, help="Candidates per request. [64]")
    add("--ids", type=int, default=100_000, help="Ids are 0 .. N-1. [100000]")
    add("--json-share", type=float, default=0.25, help="TFS JSON share. [0.25]")
    add("--rate", type=float, default=0.0, help="Requests/s of all users; 0: all out.")
    add("--deltas", default="", help="Folder of delta files, <step>.safetensors.")
    add("--delta-every-s", type=float, default=1.0, help="Pace. [1.0]")
    add("--publish", choices=WAYS, default="admin", help="How. [admin]")
    add("--publish-folder", default="", help="The version's deltas/ folder.")
    add("--admin", default="http://127.0.0.1:8502", help="The admin port.")
    add("--plan", default="", help="Plan file: check scores against it.")
    add("--record", default="", help="Write what happened to this JSON file.")


class LocustRun:
    """The run of one test, which its users share. environment.freshet holds it from test_start on."""

    def __init__(self, options: Any, host: str | None) -> None:
        self.options = options
        self.plan = ScorePlan.load(Path(options.plan)) if options.plan else None
        self.signature, self.generation = self._look_up(host)
        self.pool = self._requests()
        self.recorder = Measurements(time.monotonic())

    def _look_up(self, host: str | None) -> tuple[Signature, str]:
        name = urllib.parse.quote(self.options.model, safe="")
        url = f"{(host or '').rstrip('/')}/v2/models/{name}"
        with urllib.request.urlopen(url, timeout=LOOKUP_TIMEOUT_S) as reply:
            return parse_metadata(json.load(reply)), reply.headers.get(GENERATION) or ""

    def _requests(self) -> list[Request]:
        if self.plan is None:
            o = self.options
            return list(requests(self.signature, o.rows, o.ids, DRAWN_REQUESTS, o.json_share))
        planned = [(n, self.plan.columns(n)) for n in range(self.plan.requests)]
        return [encode(self.signature, c, n) for encode in (encode_kserve, encode_tfs) for n, c in planned]

    def next_request(self, sent: int) -> Request:
        """A request at random; of a plan, each in the protocol whose turn it is."""
        if self.plan is None:
            return random.choice(self.pool)
        first = self.plan.requests if is_json(sent, self.options.json_share) else 0
        return self.pool[first + random.randrange(self.plan.requests)]

    def check(self, request: Request, response: Any) -> None:
        """Raises WrongReply unless the reply answers the request."""
        try:
            scores = decode(request, response.content, response.headers.get(HEADER_LENGTH), self.signature.outputs[0])
        except ValueError as error:
            raise WrongReply(str(error)) from None
        if self.plan is not None:
            self.plan.check(request.number, response.headers.get(GENERATION), scores)
        elif len(scores) < request.rows:
            raise WrongReply(f"{request.rows} scores wanted, got {len(scores)}")

    def show_progress(self) -> None:
        """Shows one line a second, until killed; on a terminal always the same one."""
        before, after = ("\r", "\x1b[K") if sys.stderr.isatty() else ("", "\n")
        while True:
            gevent.sleep(WINDOW_S)
            count, failed, mixed = self.recorder.totals()
            if not self.recorder.windows:
                continue
            w = self.recorder.windows[-1]
            line = (
                f"{time.monotonic() - self.recorder.start_s:5.0f} s  {count} requests, {w['requests']}/s, "
                f"p50 {w['p50_ms']:.1f} ms, p99 {w['p99_ms']:.1f} ms, {len(self.recorder.deltas)} deltas, "
                f"{failed} failed, {mixed} mixed"
            )
            print(before, line, after, sep="", end="", file=sys.stderr, flush=True)


@events.init.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """Before anything runs. Without --deltas there is nothing for the delta user to do."""
    options = environment.parsed_options
    # Locust inspects its own stack when it stops a test. The first time takes 50 ms and more, with replies
    # waiting to be read: have it behind us.
    inspect.stack()
    # gevent's clock stood still during the imports; the run time, set next, would begin that much too early.
    gevent.get_hub().loop.update_now()
    if options is not None and not options.deltas:
        environment.user_classes[:] = [c for c in environment.user_classes if c is not DeltaUser]


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    try:
        environment.freshet = LocustRun(options, environment.host)
    except (OSError, ValueError, KeyError) as error:
        # Locust goes on after an Exception of a listener, with users that have nothing to send.
        raise SystemExit(f"loadtest: model {options.model!r} cannot be asked: {error}") from error
    if options.headless:
        environment.freshet_progress = gevent.spawn(environment.freshet.show_progress)


@events.test_stop.add_listener
def stop(environment: Any, **_: Any) -> None:
    run, options = environment.freshet, environment.parsed_options
    if options.headless:
        environment.freshet_progress.kill()
        if sys.stderr.isatty():
            print(file=sys.stderr)
    document = run.recorder.document()
    if options.record:
        Path(options.record).write_text(json.dumps(document))
    else:
        taken, missing = freshness(document["deltas"], [document["first_seen_s"]])
        figures = {way: freshness_ms(values) for way, values in taken.items()}
        print(*freshness_lines(figures, missing), sep="\n", file=sys.stderr)


@events.request.add_listener
def record(name: str, response_time: float, exception: Exception | None, context: dict[str, Any], **_: Any) -> None:
    recorder: Measurements | None = context.get("recorder")
    if recorder is not None:
        mixed = isinstance(exception, MixedGenerations)
        recorder.request(
            name, time.monotonic(), response_time / 1000, str(exception or ""), mixed, load=name != "delta"
        )


def fault(response: Any) -> Exception | None:
    """Why the reply is no 200, in words that name no host; None when it is one."""
    if response.status_code == 200:
        return None
    if not response.status_code:
        return WrongReply(f"no reply: {type(response.error).__name__}")
    return WrongReply(f"status {response.status_code}: {(response.text or '')[:200]}")


class PredictUser(FastHttpUser):
    """Sends predict requests one after another over one connection, checking each reply."""

    concurrency = 1

    def on_start(self) -> None:
        self.run_state: LocustRun = self.environment.freshet
        self.sent = random.randrange(100)
        rate = self.run_state.options.rate / max(1, (self.environment.runner.target_user_count or 1) - self._others())
        self.pace = constant_throughput(rate) if rate else constant(0)
        if rate:
            # Users start together: without this they would send in bursts for the rest of the run.
            gevent.sleep(random.random() / rate)

    def _others(self) -> int:
        return int(DeltaUser in self.environment.user_classes)

    def wait_time(self) -> float:
        return self.pace(self)

    def context(self) -> dict[str, Any]:
        return {"recorder": self.environment.freshet.recorder}

    @task
    def predict(self) -> None:
        run = self.run_state
        request = run.next_request(self.sent)
        self.sent += 1
        with self.client.post(
            request.path,
            data=request.body,  # type: ignore[arg-type]  # Bytes go as they are; Locust does not declare them.
            headers=request.headers,
            name=request.protocol,
            catch_response=True,
        ) as response:
            wrong = fault(response)
            if wrong is None:
                generation = response.headers.get(GENERATION)
                if generation:
                    run.recorder.seen(generation, time.monotonic())
                try:
                    run.check(request, response)
                except WrongReply as error:
                    wrong = error
            if wrong is not None:
                response.failure(wrong)


class DeltaUser(FastHttpUser):
    """Publishes the folder's next delta at every tick, beginning above the step that the server is at.

    A delta that the server refuses counts as a failed request and is tried again at the next tick.
    """

    fixed_count = 1
    wait_time = constant(0)

    def on_start(self) -> None:
        run: LocustRun = self.environment.freshet
        options = run.options
        self.recorder = run.recorder
        self.folder = Path(options.deltas)
        self.last_step = int(run.generation.partition(".")[2] or 0)
        self.by_folder_after = self.last_step
        found = pending(self.folder, self.last_step)
        if options.publish == "admin":
            self.by_folder_after = sys.maxsize
        elif options.publish == "both" and found:
            self.by_folder_after, _ = found[(len(found) - 1) // 2]
        if options.publish != "admin" and not Path(options.publish_folder or "-").is_dir():
            raise ValueError("--publish-folder: the version's deltas folder wanted")
        self.url = f"{options.admin.rstrip('/')}/admin/models/{urllib.parse.quote(options.model, safe='')}/deltas"
        self.headers = {"Content-Type": "application/octet-stream"}
        token = os.environ.get("FRESHET_ADMIN_TOKEN")
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self.due_s = time.monotonic()

    def context(self) -> dict[str, Any]:
        return {"recorder": self.environment.freshet.recorder}

    @task
    def bring(self) -> None:
        options = self.environment.freshet.options
        self.due_s = max(self.due_s + options.delta_every_s, time.monotonic())
        gevent.sleep(self.due_s - time.monotonic())
        # Files are read and written in gevent's threads: a slow disk must not hold up the users.
        threads = gevent.get_hub().threadpool
        waiting = threads.apply(pending, (self.folder, self.last_step))
        if not waiting:
            gevent.sleep(IDLE_S)
            return
        step, path = waiting[0]
        generation, data = threads.apply(generation_of, (path,)), threads.apply(path.read_bytes)
        published_s = time.monotonic()
        if step > self.by_folder_after:
            threads.apply(publish, (data, Path(options.publish_folder), step))
            self.recorder.published(generation, "folder", published_s)
            self.last_step = step
            return
        with self.client.post(self.url, data=data, headers=self.headers, name="delta", catch_response=True) as response:
            wrong = fault(response)
            if wrong is not None:
                response.failure(wrong)
                return
        self.recorder.published(generation, "admin", published_s)
        self.last_step = step
