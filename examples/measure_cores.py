"""What a request costs a running server: its processor time, and how many cores a rate of requests would take.

    python examples/measure_cores.py ctr request.json --seconds 10 --rate 1000

request.json is a body of /v1/models/MODEL:predict, one that is typical of yours. Two connections ask in turn; what the
server's processes spend meanwhile is read from its metrics. Clients that run on the same machine are not counted.
"""

import argparse
import http.client
import re
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("request")
parser.add_argument("--server", default="localhost:8501")
parser.add_argument("--seconds", type=float, default=10.0)
parser.add_argument("--connections", type=int, default=2)
parser.add_argument("--rate", type=float, default=1000.0, help="requests a second that are planned for")
options = parser.parse_args()
with open(options.request, "rb") as file:
    body = file.read()


def processor_s() -> float:
    """Processor time of the server so far: of its one process, or of its workers."""
    connection = http.client.HTTPConnection(options.server, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    for name in ("freshet_worker_cpu_seconds_total", "process_cpu_seconds_total"):
        if found := re.findall(rf"^{name}(?:{{[^}}]*}})? ([\d.e+-]+)$", text, re.MULTILINE):
            return sum(map(float, found))
    raise SystemExit("the server's metrics say nothing of processor time")


def ask(until_s: float, took_s: list[float]) -> None:
    connection = http.client.HTTPConnection(options.server, timeout=10)
    while time.monotonic() < until_s:
        begun_s = time.monotonic()
        connection.request("POST", f"/v1/models/{options.model}:predict", body)
        reply = connection.getresponse()
        answer = reply.read()
        if reply.status != 200:
            raise SystemExit(answer.decode())
        took_s.append(time.monotonic() - begun_s)


took_s: list[float] = []
ask(time.monotonic() + 1, took_s)
took_s.clear()
before_s, begun_s = processor_s(), time.monotonic()
clients = [threading.Thread(target=ask, args=(begun_s + options.seconds, took_s)) for _ in range(options.connections)]
for client in clients:
    client.start()
for client in clients:
    client.join()
spent_s, lasted_s = processor_s() - before_s, time.monotonic() - begun_s
cost_s = spent_s / len(took_s)
took_s.sort()
p50, p99 = (1e3 * took_s[int(share * len(took_s))] for share in (0.5, 0.99))
print(f"{len(took_s) / lasted_s:.0f} requests a second, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
print(f"{1e3 * cost_s:.3f} ms of one core a request")
print(f"{options.rate:.0f} requests a second at 70 % load: {options.rate * cost_s / 0.7:.1f} cores")
