"""A plain PyTorch loop beside two servers; under a Python that has PyTorch.

    python -m tests.e2e.torch_loop REPOSITORY ADMIN_PORT ADMIN_PORT

Prints, as JSON in its last line, how long the servers took and what the model has at the end.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request

import numpy as np

from freshet_serving import Publisher


def write_served(repository):
    """The small package of the tests: a user's matrix under the name of its table."""
    from tests.support.packages import write_package

    write_package(repository, users=range(20))


def ask(port, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/admin/models{path}", body and json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def wait_for_all(ports, generation):
    began_s = time.monotonic()
    while any(ask(port, "")["models"]["small"]["generation"] != str(generation) for port in ports):
        assert time.monotonic() - began_s < 30
        time.sleep(0.01)
    return time.monotonic() - began_s


def main(repository, *ports):
    import torch

    class Net(torch.nn.Module):
        """A matrix and a bias whose names are the package's."""

        def __init__(self, bias):
            super().__init__()
            self.user = torch.nn.Parameter(torch.randn(20, 4))
            self.register_parameter("mlp_0/bias", torch.nn.Parameter(torch.zeros(bias)))

        def forward(self, users):
            weight = torch.nn.functional.embedding(users, self.user, sparse=True)
            return weight.sum(1) + getattr(self, "mlp_0/bias").mean()

    torch.manual_seed(0)
    publisher = Publisher(repository, "small")
    model = Net(publisher.manifest.dense["mlp_0/bias"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = publisher.torch(model, optimizer, every_batches=5)

    def learn(batches):
        for _ in range(batches):
            optimizer.zero_grad()
            loss = (model(torch.randint(0, 20, (8,))) - 1.0).pow(2).mean()
            loss.backward()
            optimizer.step()

    learn(10)
    good = hook.generation
    learn(10)
    wait_for_all(ports, hook.generation)
    began_s = time.monotonic()
    ask(ports[0], "/small/rollback", {"generation": str(good)})
    wait_for_all(ports, good)
    told_s = time.monotonic() - began_s
    learn(5)
    fresh_s = wait_for_all(ports, hook.generation)
    hook.close()
    print(
        json.dumps(
            {
                "told_s": told_s,
                "fresh_s": fresh_s,
                "generation": str(hook.generation),
                "user rows": np.ascontiguousarray(model.user.detach().numpy()).tobytes().hex(),
                "mlp_0/bias": getattr(model, "mlp_0/bias").detach().numpy().tobytes().hex(),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
