"""The networks of `make -C loadtest bench-sequences` in PyTorch on a CPU, the user's part computed once a request.

Run in an environment with torch and numpy. Arguments: the network, a file of its weights and inputs, threads. Looked-up
rows are given: of a request, the events [length, d], the candidates' rows [n, d] and the other columns x.
"""

# mypy: ignore-errors

import json
import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional as F

EPSILON = 1e-6


class Weights:
    """Weights by the names that the zoo gives them."""

    def __init__(self, arrays):
        self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        # As nn.Linear keeps them: the other way round.
        self.turned = {n: a.T.contiguous() for n, a in self.arrays.items() if n.endswith("/kernel")}

    def dense(self, x, name):
        return F.linear(x, self.turned[f"{name}/kernel"], self.arrays.get(f"{name}/bias"))

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.arrays[f"{name}/gamma"], self.arrays[f"{name}/beta"], EPSILON)

    def score(self, parts):
        return torch.sigmoid(self.dense(torch.relu(self.dense(torch.cat(parts, 1), "mlp_0")), "mlp_out"))


def stca(w, x, target, events, seconds, layers, units):
    read = []
    for i in range(layers):
        gated = F.silu(w.dense(events, f"history_gate_{i}")) * w.dense(events, f"history_up_{i}")
        events = w.norm(w.dense(gated, f"history_down_{i}"), f"history_norm_{i}")
        keys, values = w.dense(events, f"history_key_{i}"), w.dense(events, f"history_value_{i}")
        query = w.dense(torch.cat([*read, target], 1), f"history_query_{i}")
        read.append(F.scaled_dot_product_attention(query[None], keys[None], values[None])[0])
    return w.score([x, *read])


def sasrec(w, x, target, events, seconds, layers, units):
    events = w.dense(events, "history_event") * units**0.5 + w.arrays["history_position/rows"][0, : len(events)]
    for i in range(layers):
        own = w.norm(events, f"history_norm_{i}_0")
        parts = [w.dense(own, f"history_query_{i}"), *(w.dense(events, f"history_{n}_{i}") for n in ("key", "value"))]
        attended = F.scaled_dot_product_attention(*(p[None] for p in parts), is_causal=True)[0]
        events = w.norm(own + w.dense(attended, f"history_out_{i}"), f"history_norm_{i}_1")
        events = events + w.dense(torch.relu(w.dense(events, f"history_first_{i}")), f"history_second_{i}")
    user = w.norm(events[-1:], "history_last").expand(len(x), -1)
    item = w.dense(target, "history_target")
    return w.score([x, user, item, user * item])


def hstu(w, x, target, events, seconds, layers, units):
    length = len(events)
    places = torch.arange(length)
    item, events = w.dense(target, "history_target"), w.dense(events, "history_event")
    bucket = lambda s: (torch.log(s.abs().clamp(min=1.0)) / 0.301).clamp(max=127.0).to(torch.int64)  # noqa: E731
    for i in range(layers):
        at, times = (w.arrays[f"history_bias_{i}/{name}"] for name in ("places", "times"))
        gate, value, query, key = F.silu(w.dense(w.norm(item, f"history_norm_{i}"), f"history_all_{i}")).chunk(4, 1)
        gates, values, queries, keys = F.silu(w.dense(w.norm(events, f"history_norm_{i}"), f"history_all_{i}")).chunk(
            4, 1
        )
        bias = at[length - places] + times[bucket(seconds)]
        seen = F.silu(query @ keys.T + bias) / (length + 1)
        itself = F.silu((query * key).sum(1, keepdim=True) + at[0] + times[0]) / (length + 1)
        read = w.norm(seen @ values + itself * value, f"history_inner_{i}")
        item = w.dense(gate * read, f"history_out_{i}") + item
        if i + 1 < layers:
            between = at[(places[:, None] - places).abs()] + times[bucket(seconds[None] - seconds[:, None])]
            weights = torch.tril(F.silu(queries @ keys.T + between) / (length + 1))
            events = w.dense(gates * w.norm(weights @ values, f"history_inner_{i}"), f"history_out_{i}") + events
    return w.score([x, item])


@torch.inference_mode()
def main():
    network, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    with np.load(path) as file:
        arrays = dict(file)
    inputs = {name: torch.from_numpy(arrays.pop(f"input/{name}")) for name in ("x", "target", "events", "seconds")}
    layers, units = int(arrays.pop("layers")), int(arrays.pop("units"))
    weights, run = Weights(arrays), {"stca": stca, "sasrec": sasrec, "hstu": hstu}[network]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        started_s, scores = time.process_time(), None
        for _ in range(int(line)):
            scores = run(weights, *inputs.values(), layers, units)
        spent_s = time.process_time() - started_s
        answers.write(json.dumps({"cpu_s": spent_s, "scores": scores[:, 0].tolist()}) + "\n")


if __name__ == "__main__":
    main()
