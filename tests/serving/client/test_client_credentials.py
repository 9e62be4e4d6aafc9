"""What clients show servers that ask for keys and speak TLS: every client, over every protocol."""

import asyncio
import contextlib

import numpy as np
import pytest

from freshet_serving import AsyncClient, Client
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.serving.access.key_file import RateLimits
from freshet_serving.serving.client.client_credentials import ClientCredentials
from tests.serving.access.certified import Authority
from tests.serving.access.keyed import Keyed
from tests.serving.fakes import FakeProcessor
from tests.serving.test_server import running
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

INPUTS = {"ids": np.ones((1, 3), np.int64), "floats": np.full((1, 2), 0.5, np.float32)}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """(addresses, options of clients, keys) of a server that asks for everything."""
    folder = tmp_path_factory.mktemp("trust")
    authority, keyed = Authority(folder), Keyed(folder)
    keyed.add("once", ["predict"], RateLimits(rate=0.001))
    chain, key = map(str, authority.write())
    options = {"api_keys": str(keyed.path), "tls_cert": chain, "tls_key": key, "tls_client_ca": str(authority.path)}
    certificate, private_key = map(str, authority.write("client"))
    told = {"ca": str(authority.path), "certificate": certificate, "private_key": private_key, "timeout_s": 30.0}
    with running(lambda config: FakeProcessor(), **options) as (server, _, _):
        http = f"https://localhost:{server.http_address[1]}"
        rpc = f"grpcs://localhost:{server.grpc_address.rpartition(':')[2]}"
        with Client(http, **told) as client:
            until(client.ready)
        yield (http, rpc), told, keyed


def predict(address, **options):
    with Client(address, **options) as client:
        return client.predict("ctr", INPUTS).scores().tolist()


def predict_async(address, **options):
    async def ask():
        async with AsyncClient(address, **options) as client:
            return (await client.predict("ctr", INPUTS)).scores().tolist()

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [predict, predict_async])
@pytest.mark.parametrize("which", [0, 1])
def test_client_with_a_key_and_a_certificate_is_answered(live, ask, which):
    addresses, told, keyed = live
    assert ask(addresses[which], key=keyed.secrets["predict"], **told) == [4.0]
    with pytest.raises(FreshetError, match="expected a valid bearer token"):
        ask(addresses[which], **told)
    with pytest.raises(FreshetError, match="expected a key with the scope predict, got 'metrics' without it"):
        ask(addresses[which], key=keyed.secrets["metrics"], **told)
    with contextlib.suppress(FreshetError):
        ask(addresses[which], key=keyed.secrets["once"], **told)
    with pytest.raises(FreshetError, match=r"key 'once': expected at most 0\.001 requests a second"):
        ask(addresses[which], key=keyed.secrets["once"], **told)


@pytest.mark.parametrize("which", [0, 1])
def test_client_without_required_credentials_gets_no_connection(live, which):
    addresses, told, keyed = live
    key = keyed.secrets["predict"]
    for lacking in ({**told, "ca": ""}, {"ca": told["ca"]}):
        with pytest.raises(FreshetError):
            predict(addresses[which], **{**lacking, "key": key, "timeout_s": 3.0})


def test_key_is_never_printed():
    assert "s3cret" not in repr(ClientCredentials("s3cret"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "a b"}, "key: expected printable ASCII without spaces"),
        ({"key": "a\r\nx: y"}, "key: expected printable ASCII"),
        ({"certificate": "client.crt"}, "certificate, private_key: expected both or neither"),
        ({"ca": "/nowhere.pem"}, "expected PEM files, got no such file or directory"),
    ],
)
def test_unusable_credentials_are_refused_before_sending(options, said):
    for address in ("https://localhost:1", "grpcs://localhost:1"):
        with pytest.raises(BadInput, match=said):
            Client(address, **options)
