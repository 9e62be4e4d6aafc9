"""Freshet's own client: synchronous and with asyncio, over HTTP and gRPC."""

from __future__ import annotations

import asyncio

import numpy as np

from freshet_serving import AsyncClient, Client, Ragged
from freshet_serving.processor.errors import BadInput, Expired, NotFound
from tests.e2e.clients.probe import check, read, refusal

TIMEOUT_S = 30.0


def inputs(probe):
    return {"user": probe.user, "tags": Ragged.of(probe.tags), "floats": probe.floats}


def synchronous(probe, address):
    with Client(address, timeout_s=TIMEOUT_S) as client:
        assert client.ready(TIMEOUT_S)
        prediction = client.predict("small", inputs(probe))
        check(probe, prediction.scores())
        assert (prediction.model, prediction.version, prediction.generation) == ("small", 1, probe.generation)
        check(probe, client.predict("small", inputs(probe), version=1, outputs=["score"]).scores("score"))
        for at, user in enumerate(probe.user.tolist()):
            one = {"user": user, "tags": Ragged.of([probe.tags[at]])}
            scores = client.rank("small", one, {"floats": np.repeat(probe.floats[at : at + 1], 3, 0)})
            np.testing.assert_allclose(scores, probe.scores[at].repeat(3), atol=1e-5)
        refusal(NotFound, client.predict, "absent", inputs(probe))
        refusal(NotFound, client.predict, "small", inputs(probe), version=9)
        assert "user" in str(refusal(BadInput, client.predict, "small", inputs(probe) | {"user": [0.5]}))
        refusal(Expired, client.predict, "small", inputs(probe), timeout_s=1e-9)


async def asynchronous(probe, address):
    async with AsyncClient(address, timeout_s=TIMEOUT_S) as client:
        assert await client.ready(TIMEOUT_S)
        for prediction in await asyncio.gather(*[client.predict("small", inputs(probe)) for _ in range(20)]):
            check(probe, prediction.scores())
            assert prediction.generation == probe.generation
        one = {"user": int(probe.user[0]), "tags": Ragged.of([probe.tags[0]])}
        scores = await client.rank("small", one, {"floats": probe.floats[:1].repeat(3, 0)})
        np.testing.assert_allclose(scores, probe.scores[0].repeat(3), atol=1e-5)
        try:
            await client.predict("absent", inputs(probe))
        except NotFound:
            return
        raise AssertionError("an absent model was not refused")


def main():
    probe = read()
    for address in (f"http://{probe.http}", f"grpc://{probe.grpc}"):
        synchronous(probe, address)
        asyncio.run(asynchronous(probe, address))
    print("done")


if __name__ == "__main__":
    main()
