"""Build the protobuf message classes in a private descriptor pool.

A pool holds one definition per name, and clients register their own in the process-wide default pool. A private pool
lets server and clients live in one process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from freshet_serving.serving.codecs.proto_files import FILES

POOL = DescriptorPool()
for _file in FILES:
    POOL.AddSerializedFile(_file)


@cache
def message(name: str) -> Any:
    """Return the class of a message by its full name, such as "tensorflow.serving.ModelSpec"."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))
