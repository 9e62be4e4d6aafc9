"""Bodies that come in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.serving.http.request_body import GROWTH_NBYTES, SHORT_NBYTES, BodyBuffer


@given(
    st.lists(st.integers(0, SHORT_NBYTES), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(0, 4 * GROWTH_NBYTES)),
    st.integers(0, 255),
)
def test_body_joins_its_pieces_for_any_declared_length(lengths, told, seed):
    pieces = [bytes([(seed + n) % 256]) * length for n, length in enumerate(lengths)]
    body = BodyBuffer(pieces[0], told)
    for n, piece in enumerate(pieces[1:]):
        body.add(piece if n % 2 else bytearray(piece))
    whole = body.whole()
    assert len(body) == len(whole) == sum(lengths)
    assert bytes(whole) == b"".join(pieces)


def test_complete_body_is_read_only():
    for nbytes in (10, 2 * SHORT_NBYTES):
        body = BodyBuffer(bytes(nbytes), None)
        body.add(bytes(nbytes))
        assert memoryview(body.whole()).readonly


def test_declared_length_alone_allocates_no_memory():
    def resident_nbytes():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident_nbytes()
    bodies = []
    for _ in range(16):
        body = BodyBuffer(b"x", 64 << 20)
        body.add(bytes(SHORT_NBYTES))
        bodies.append(body)
    assert resident_nbytes() - before < 64 << 20
    assert {len(body) for body in bodies} == {SHORT_NBYTES + 1}
