"""Build the protobuf message classes in a private descriptor pool.

A pool holds one definition per name, and clients register their own in the process-wide default pool. A private pool
lets server and clients live in one process.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

POOL = DescriptorPool()
# By its loader: a client may be imported from a zip file.
_compiled = pkgutil.get_data(__name__, "protos.binpb")
assert _compiled is not None
for _file in FileDescriptorSet.FromString(_compiled).file:
    POOL.AddSerializedFile(_file.SerializeToString())


@cache
def message(name: str) -> Any:
    """Return the class of a message by its full name, such as "tensorflow.serving.ModelSpec"."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))
