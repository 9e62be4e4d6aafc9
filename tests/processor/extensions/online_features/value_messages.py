"""Feast's Value as a message of protobuf's own runtime, made of its field numbers: what decoders are compared with."""

import json
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VECTORS = json.loads(Path(__file__).with_name("feast_vectors.json").read_text())
"""Made in an environment with feast 0.67.0, by loadtest/bench/feast_side.py of commit 5a7d3e30."""

_Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    1: ("bytes", _Field.TYPE_BYTES),
    2: ("string", _Field.TYPE_STRING),
    3: ("int32", _Field.TYPE_INT32),
    4: ("int64", _Field.TYPE_INT64),
    5: ("double", _Field.TYPE_DOUBLE),
    6: ("float", _Field.TYPE_FLOAT),
    7: ("bool", _Field.TYPE_BOOL),
    8: ("unix_timestamp", _Field.TYPE_INT64),
}


def _value_class():
    file = descriptor_pb2.FileDescriptorProto(name="value.proto", package="test", syntax="proto3")
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="val")
    for number, (name, kind) in SCALARS.items():
        many = file.message_type.add(name=f"{name}_many")
        many.field.add(name="val", number=1, type=kind, label=_Field.LABEL_REPEATED)
        value.field.add(name=f"{name}_val", number=number, type=kind, label=_Field.LABEL_OPTIONAL, oneof_index=0)
        for suffix, offset in (("list", 10), ("set", 21)):
            value.field.add(
                name=f"{name}_{suffix}_val",
                number=number + offset,
                type=_Field.TYPE_MESSAGE,
                type_name=f".test.{name}_many",
                label=_Field.LABEL_OPTIONAL,
                oneof_index=0,
            )
    value.field.add(name="null_val", number=19, type=_Field.TYPE_INT32, label=_Field.LABEL_OPTIONAL, oneof_index=0)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Value"))


Value = _value_class()


def value_of(kind, content):
    """A message that holds a Python value as one of Feast's types."""
    message = Value()
    field = f"{kind}_val"
    if isinstance(content, list):
        getattr(message, field).SetInParent()
        getattr(message, field).val.extend(content)
    else:
        setattr(message, field, content)
    return message
