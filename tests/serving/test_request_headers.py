"""What headers say of a request, seen where the processor gets it."""

from tests.serving.fakes import send
from tests.serving.http.data_app import BODY, serve


def test_caller_hash_is_stable():
    app, processor, _, _ = serve()
    for caller in ("alice", "bob", "alice", None):
        send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-caller-id": caller} if caller else {})
    alice, bob, again, nobody = [r.caller for r in processor.requests]
    assert alice == again != bob
    assert nobody is None


def test_sticky_key_reaches_the_split():
    app, processor, _, _ = serve()
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-sticky-key": "user-7"})
    assert processor.requests[-1].key == b"user-7"
