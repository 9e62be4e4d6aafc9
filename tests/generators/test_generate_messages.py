from pathlib import Path

import pytest

from generators import generate_messages as generate


@pytest.mark.parametrize("target", generate.TARGETS)
def test_descriptors_equal_those_of_the_proto_files(target):
    pytest.importorskip("grpc_tools", reason="grpcio-tools compiles them")
    assert (Path(generate.ROOT) / target).read_bytes() == generate.generate(target), "run `make -C loadtest protos`"
