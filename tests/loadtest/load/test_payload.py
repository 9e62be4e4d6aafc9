import numpy as np
import pytest

from loadtest.load.encoding import encode_kserve
from loadtest.load.payload import BENCH, Payload, bench_inputs, bench_payload, of_requests


def test_saved_payload_round_trips_byte_for_byte(tmp_path):
    payload = bench_payload(2, 3, 100)
    assert Payload.load(payload.save(tmp_path / "p")) == payload


def test_bodies_depend_only_on_candidates_and_seed():
    assert bench_payload(2, 3, 100) == bench_payload(2, 3, 100)
    assert bench_payload(2, 3, 100, seed=1) != bench_payload(2, 3, 100)
    assert len(set(bench_payload(2, 8, 100).bodies)) == 8


def test_ids_exist_in_the_tables():
    ids = np.stack([i["ids"] for i in bench_inputs(64, 8, 50)])
    assert ids.shape == (8, 64, 26)
    assert (ids.min(), ids.max()) == (0, 49)


def test_messages_are_complete_requests():
    payload = Payload("/v2/models/bench/infer", (b"abc",), {"A": "1"})
    assert payload.messages("127.0.0.1:8501", {"B": "2"}) == [
        b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: 127.0.0.1:8501\r\nA: 1\r\nB: 2\r\nContent-Length: 3\r\n\r\nabc"
    ]


def test_requests_differing_in_headers_are_not_a_payload():
    requests = [encode_kserve(BENCH, bench_inputs(n, 1, 100)[0]) for n in (1, 64)]
    with pytest.raises(ValueError, match="headers"):
        of_requests(requests)
