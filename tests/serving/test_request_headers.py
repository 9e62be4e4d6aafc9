"""What headers say of a request, seen where the processor gets it."""

from freshet_serving.serving.request_headers import MAX_LISTED_NBYTES, list_defaulted
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


def test_defaulted_inputs_are_listed_up_to_a_length():
    assert list_defaulted({"age": "late", "a,b": "null"}) == b"age=late, a%2Cb=null"
    listed = list_defaulted({f"feature_{n}": "not_found" for n in range(1000)})
    assert len(listed) <= MAX_LISTED_NBYTES + len(", ...")
    assert listed.endswith(b", ...")
