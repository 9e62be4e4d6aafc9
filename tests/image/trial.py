"""Try an image as people run it: as its user, as a uid that nobody has, read-only, replaced under load."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.launch import first_answer, free_ports, port_options
from loadtest.load.processes import cpu_s, tree
from tests.image.builder import Builder
from tests.image.container import Container

TIMEOUT_S = 300.0
SAMPLE = json.loads((Path(__file__).parents[2] / "serving" / "sample" / "request.json").read_text())
NOBODY = "471147:0"


@dataclass(frozen=True, slots=True)
class Start:
    """A container from its start to its first answer.

    Attributes:
        stage: The image's stage.
        how: What was particular about it.
        wall_s: Seconds.
        cpu_s: Seconds of processor time of all its processes.
        complaint: What was wrong, or an empty string.
    """

    stage: str
    how: str
    wall_s: float
    cpu_s: float
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """How a container is run. user: as of Container."""

    name: str
    user: str = ""
    read_only: bool = False


WAYS = (
    Way("its user"),
    Way("read-only", read_only=True),
    Way("a uid that nobody has", NOBODY),
    Way("a uid that nobody has, read-only", NOBODY, read_only=True),
)


def try_start(builder: Builder, stage: str, way: Way) -> Start:
    """Start a new container of an image with the sample, ask it, run its health check and stop it."""
    ports, config = free_ports(3), builder.config(stage)
    root, command = builder.unpack(f"freshet-{stage}"), ["serve", "--sample", *port_options(ports)]
    with Container(root, config, command, user=way.user, read_only=way.read_only) as container:
        answered = ask_first(container, ports[0])
        wall_s, pid = time.monotonic() - container.began_s, container.pid
        used_s = cpu_s(tree(pid), ended=True) if pid else 0.0
        complaint = "" if answered else "no answer"
        if answered:
            complaint = check_health(container, config["Healthcheck"]["Test"][1:], ports[0])
    status, said = container.stop()
    if status or complaint:
        complaint = f"{complaint or 'exit status'} {status}: {said[-600:]}"
    return Start(stage, way.name, wall_s, used_s, complaint)


def ask_first(container: Container, port: int) -> bool:
    """Wait for the first answer of the sample; return False if there is none in time."""
    body = json.dumps(SAMPLE["body"]).encode()
    return first_answer(port, SAMPLE["model"], body, container.ended, TIMEOUT_S) is not None


def check_health(container: Container, command: list[str], port: int) -> str:
    """Run the image's health check beside its process; return what it complains of."""
    # The check asks the default port.
    done = container.run([text.replace(":8501/", f":{port}/") for text in command])
    return "" if done.returncode == 0 else f"health check: {done.stderr[-300:]}"


class Clients:
    """Clients that ask without a pause, each over a connection that it keeps, wherever `port` says.

    A client that is told of the end of its connection makes a new one; whatever else goes wrong is a failure.
    """

    def __init__(self, port: int, count: int = 4) -> None:
        self.port = port
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        path, body = f"/v1/models/{SAMPLE['model']}:predict", json.dumps(SAMPLE["body"]).encode()
        while not self._ended.is_set():
            port = self.port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                while not self._ended.is_set() and port == self.port:
                    connection.request("POST", path, body, {"content-type": "application/json"})
                    reply = connection.getresponse()
                    reply.read()
                    if reply.status != 200:
                        self.failures.append(f"status {reply.status}")
                    self.answers[port] += 1
                    if reply.will_close:
                        break
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()


def replace_under_load(builder: Builder, stage: str, times: int) -> dict[str, Any]:
    """Replace a container by a new one, again and again, while clients ask.

    Returns:
        replacements, answers, failures (texts).
    """
    config = builder.config(stage)

    def new() -> tuple[Container, int]:
        ports = free_ports(3)
        root = builder.unpack(f"freshet-{stage}")
        container = Container(root, config, ["serve", "--sample", *port_options(ports)], read_only=True)
        if not ask_first(container, ports[0]):
            raise SystemExit(f"image-check: a container does not answer: {container.stop()[1][-600:]}")
        return container, ports[0]

    container, port = new()
    clients = Clients(port)
    failures = []
    for _ in range(times):
        later, clients.port = new()
        status, said = container.stop()
        if status:
            failures.append(f"exit status {status}: {said[-300:]}")
        container = later
    clients.stop()
    container.stop()
    return {
        "replacements": times,
        "answers": sum(clients.answers.values()),
        "failures": [*failures, *clients.failures],
    }
