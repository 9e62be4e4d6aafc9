"""KServe's own clients, over REST in both versions and gRPC, against a server that asks for keys and speaks TLS:
`... given.json`. Needs kserve alone, so that it may run in an environment of its own."""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

ARRAYS = {
    "user": (np.array([3], np.int64), "INT64"),
    "tags": (np.array([b"a"], object), "BYTES"),
    "tags.row_splits": (np.array([0, 1], np.int64), "INT64"),
    "floats": (np.full((1, 4), 0.5, np.float32), "FP32"),
}


def request():
    inputs = []
    for name, (array, datatype) in ARRAYS.items():
        inputs.append(InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array, binary_data=True)
    return InferRequest("small", inputs)


async def over_rest(given, version):
    context = ssl.create_default_context(cafile=given["ca"])
    client = InferenceRESTClient(RESTConfig(protocol=version, verify=context))
    address, key = given["https"], {"authorization": given["predict"]}
    if version == "v1":
        row = {"user": 3, "tags": ["a"], "floats": [0.5] * 4}

        async def ask(headers):
            return (await client.infer(address, {"instances": [row]}, "small", headers=headers))["predictions"]
    else:

        async def ask(headers):
            return (await client.infer(address, request(), "small", headers=headers)).outputs[0].as_numpy()

    assert len(await ask(key)) == 1
    for headers, status in (({}, 401), ({"authorization": given["metrics"]}, 403)):
        try:
            await ask(headers)
            got = 200
        except httpx.HTTPStatusError as error:
            got = error.response.status_code
        assert got == status
    await client.close()


async def over_grpc(given):
    async with InferenceGRPCClient(given["grpc"], use_ssl=True, root_certificates=given["ca"]) as client:
        reply = await client.infer(request(), headers=[("authorization", given["predict"])])
        assert reply.outputs[0].as_numpy().shape[0] == 1
        for headers, code in ((None, "UNAUTHENTICATED"), ([("authorization", given["metrics"])], "PERMISSION_DENIED")):
            try:
                await client.infer(request(), headers=headers)
                got = "OK"
            except grpc.RpcError as error:
                got = error.code().name
            assert got == code


async def main():
    given = json.loads(Path(sys.argv[1]).read_text())
    await over_rest(given, "v2")
    await over_rest(given, "v1")
    await over_grpc(given)
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
