"""The gRPC port with keys: what each method says without one, without its scope, beyond a rate; and streams."""

import threading

import grpc
import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.serving.access.access_guard import AccessGuard
from freshet_serving.serving.access.key_file import ApiKeys, RateLimits
from freshet_serving.serving.access.rate_limiter import RateLimiter, rate_limiter_memory
from freshet_serving.serving.access.scopes import OPEN, RPC_SCOPES, SCOPES
from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions
from freshet_serving.serving.rpc.handlers import address_of
from tests.serving.rpc.live import WAIT_S, Live, predict_request, request, rpc_services, scores, tfs_predict

pytestmark = pytest.mark.e2e

SERVICES = rpc_services()
METHODS = [f"/{service}/{method}" for service, methods in SERVICES.items() for method in methods]
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
CODES = grpc.StatusCode


class Keys:
    """A guard's keys by name, and the metadata that bring them."""

    def __init__(self):
        self.known, self.secrets = ApiKeys(), {}

    def add(self, name, scopes, limits=None):
        self.known, self.secrets[name] = self.known.added(name, scopes, limits=limits or RateLimits())

    def __getitem__(self, name):
        return (("authorization", f"Bearer {self.secrets[name]}"),)


@pytest.fixture(scope="module")
def keys():
    keys = Keys()
    for scope in SCOPES:
        keys.add(scope.replace(":", "-"), [scope])
    keys.add("all", SCOPES)
    keys.add("spent", SCOPES, RateLimits(rate=0.001))
    return keys


@pytest.fixture(scope="module")
def guard(keys):
    return AccessGuard(keys.known, RateLimiter(rate_limiter_memory(1), 0, SystemClock()))


@pytest.fixture(scope="module")
def live(keys, guard):
    with Live(guard=guard, regions=SystemRegions(1 << 20), model_control="explicit") as live:
        code_of(live, "/inference.GRPCInferenceService/ServerMetadata", keys["spent"])
        yield live


def ask(live, path, metadata=()):
    """One call with an empty message: its error, None for an answer."""
    _, service, method = path.split("/")
    handler = SERVICES[service][method]
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    call = getattr(live.channel, kind)(path)
    sent = iter([b""]) if handler.request_streaming else b""
    try:
        replies = call(sent, metadata=metadata, timeout=WAIT_S)
        if handler.response_streaming:
            next(iter(replies), None)
            replies.cancel()
    except grpc.RpcError as error:
        return error
    return None


def code_of(live, path, metadata=()):
    error = ask(live, path, metadata)
    return CODES.OK if error is None else error.code()


@pytest.mark.parametrize("path", METHODS)
def test_method_requires_key_scope_and_rate(live, keys, path):
    scope = RPC_SCOPES[path.rpartition("/")[2]]
    if scope == OPEN:
        assert code_of(live, path) is CODES.OK
        return
    calls = list(live.processor.calls)
    refused = ask(live, path)
    assert refused.details() == "authorization: expected a valid bearer token"
    assert refused.code() is CODES.UNAUTHENTICATED
    assert code_of(live, path, (("authorization", "Bearer guess"),)) is CODES.UNAUTHENTICATED
    if scope in keys.secrets:
        assert code_of(live, path, (("authorization", "Bearer guess"), *keys[scope])) is CODES.UNAUTHENTICATED
    lacking = "metrics" if scope != "metrics" else "features"
    assert code_of(live, path, keys[lacking]) is CODES.PERMISSION_DENIED
    if path != STREAM:
        refused = ask(live, path, keys["spent"])
        assert refused.code() is CODES.RESOURCE_EXHAUSTED
        assert int(dict(refused.trailing_metadata())["retry-after"]) > 1
    assert live.processor.calls == calls
    # An empty message is mostly not what a method wants, and this port's models are nobody's to load.
    error = ask(live, path, keys["all"])
    assert error is None or not error.details().startswith(("authorization", "key", "address"))


def test_every_request_of_a_stream_counts_but_not_its_opening(live, keys, guard):
    keys.add("three", ["predict"], RateLimits(rate=3.0, concurrency=64))
    guard.keys = keys.known
    replies = list(live.stream(iter([request() for _ in range(5)]), metadata=keys["three"], timeout=WAIT_S))
    told = [reply.error_message for reply in replies]
    assert told == ["", "", "", *["key 'three': expected at most 3 requests a second, got more"] * 2]


def test_revoked_key_keeps_its_stream_open_but_requests_are_refused(live, keys, guard):
    keys.add("going", ["predict"])
    guard.keys = keys.known

    answered = threading.Event()

    def requests():
        yield request()
        answered.wait(WAIT_S)
        yield request()

    replies = live.stream(requests(), metadata=keys["going"], timeout=WAIT_S)
    assert scores(next(replies).infer_response) == [4.0]
    guard.keys = keys.known.without("going")
    answered.set()
    (second,) = replies
    assert second.error_message == "authorization: expected a valid bearer token"


def test_call_is_in_flight_until_it_is_answered(live, keys, guard):
    keys.add("one", ["predict"], RateLimits(concurrency=1))
    guard.keys = keys.known
    for _ in range(3):
        assert scores(live.infer(request(), metadata=keys["one"], timeout=WAIT_S)) == [4.0]
        assert tfs_predict(live)(predict_request(), metadata=keys["one"], timeout=WAIT_S).model_spec.name == "ctr"
    live.processor.hold = True
    try:
        first = live.infer.future(request(), metadata=keys["one"], timeout=WAIT_S)
        while not live.processor.requests or not live.processor.held:
            pass
        with pytest.raises(grpc.RpcError, match="at most 1 requests in flight"):
            live.infer(request(), metadata=keys["one"], timeout=WAIT_S)
    finally:
        live.processor.hold = False
        live.processor.release()
    assert scores(first.result(WAIT_S)) == [4.0]
    assert scores(live.infer(request(), metadata=keys["one"], timeout=WAIT_S)) == [4.0]


def test_refusals_are_counted_like_replies(live, keys):
    def count():
        return sum(sum(numbers) for _, code, numbers, _ in live.metrics.own.series() if code == 401)

    before = count()
    code_of(live, "/inference.GRPCInferenceService/ServerMetadata")
    assert count() == before + 1


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[2001:db8::1]:80", "2001:db8::1"),
        ("unix:/run/freshet", ""),
        ("", ""),
    ],
)
def test_client_address_is_parsed_from_the_peer(peer, address):
    class Context:
        def peer(self):
            return peer

    assert address_of(Context()) == address
