import socket

import pytest

from processor.errors import BadInput
from serving.http.port import reserve


def test_a_port_that_is_taken_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}: cannot listen there"):
            reserve("127.0.0.1", port)
