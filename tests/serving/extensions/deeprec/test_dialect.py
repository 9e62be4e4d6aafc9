"""DeepRec's messages over HTTP are decoded by the extension, and refused by name without it."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.extensions.deeprec import dialect
from freshet_serving.serving.http.dialects import DIALECTS, extension_codec


def test_dialect_of_the_port_is_that_of_the_extension():
    assert (DIALECTS["processor"].decode, DIALECTS["processor"].encode) == (dialect.decode, dialect.encode)


def test_message_is_refused_by_name_without_the_extension(without_extensions):
    without_extensions("deeprec")
    decode, _ = extension_codec("processor", "deeprec")
    with pytest.raises(BadInput, match=r"^:processor needs the extension 'deeprec'"):
        decode(b"", {}, None, None, None)
