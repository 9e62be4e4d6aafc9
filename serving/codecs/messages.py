"""Classes of the messages, in a descriptor pool of their own.

A pool holds one definition of a name. Clients bring their own definitions of the same messages, and register them in
the pool that all of a process share; so this one is private, and server and clients may live in one process.
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
    """The class of a message, by its full name such as "tensorflow.serving.ModelSpec"."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))
