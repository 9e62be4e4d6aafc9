import resource
import subprocess
import sys
import tracemalloc

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.kernels.json_text import count_nodes
from freshet_serving.serving.codecs import wire

PIECES = [
    "[]",
    "{}",
    '{"a":1}',
    '{"user": 3, "tags": ["a"], "floats": [0.5, 0.5]}',
    "[1]",
    "9999",
    "0.5",
    '"é"',
    '"ab"',
    f'"{"x" * 100}😀"',
    "[1,1,1,1,1]",
    '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}',
    "[[[[[[[[]]]]]]]]",
]


def taken(text):
    tracemalloc.start()
    try:
        orjson.loads(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=30, deadline=None)  # tracing memory is slow
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_parsing_takes_no_more_than_both_bounds(pieces):
    text = f"[{','.join(pieces * 400)}]".encode()
    nodes = count_nodes(np.frombuffer(text, np.uint8))
    # The least of several: other threads of this process allocate as well.
    peak = min(taken(text) for _ in range(3))
    # The constant is the parser's own; documents that are checked are 64 KiB and longer.
    assert peak <= 1024 + wire.nbytes_of(nodes, len(text))
    assert peak <= 1024 + wire.MOST_PER_BYTE * len(text)


def test_short_document_is_not_checked(monkeypatch):
    monkeypatch.setattr(wire, "_is_free", lambda nbytes: pytest.fail("asked"))
    wire.check_memory(b"[" + b"1," * 100 + b"1]")


def test_document_is_counted_only_where_its_length_is_too_much(monkeypatch):
    asked = []
    monkeypatch.setattr(wire, "_is_free", lambda nbytes: asked.append(nbytes) or len(asked) == 2)
    text = b"[" + b"0.5," * 20_000 + b"1]"
    wire.check_memory(text)
    assert asked[0] == 64 * len(text)
    assert asked[1] < asked[0] / 2
    asked.append(0)
    with pytest.raises(NotReady, match="not enough memory"):
        wire.check_memory(memoryview(text))


CHILD = """
import resource, sys
from freshet_serving.processor.errors import NotReady
from freshet_serving.serving.codecs.wire import load_json

for piece in sys.argv[1:]:
    body = ('{"a": [' + ",".join([piece] * (1_500_000 // len(piece))) + "]}").encode()
    for more in (8, 30, 200):
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (int(line.split()[1]) * 1024 + (more << 20), resource.RLIM_INFINITY))
        try:
            load_json(body)
            print("parsed")
        except NotReady:
            print("refused")
"""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits on data are Linux's")
def test_document_without_memory_is_refused_and_kills_nobody():
    pieces = ["[]", '{"a":1}', "0.25", '"é"']
    child = subprocess.run([sys.executable, "-c", CHILD, *pieces], capture_output=True, text=True)
    assert child.returncode == 0, (child.returncode, child.stdout, child.stderr[-500:])
    replies = child.stdout.split()
    for at in range(len(pieces)):
        assert (replies[3 * at], replies[3 * at + 2]) == ("refused", "parsed"), replies
