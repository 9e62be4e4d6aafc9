"""Protocols as pure functions: bytes and headers in, named columns out, and back. No I/O, no state.

wire               what both HTTP protocols share: limits, content codings, JSON, timeouts
tfs_rest           TensorFlow Serving's REST
tfs_rpc            TensorFlow Serving's Predict over gRPC
examples           tf.Example, as classify and regress take it
kserve             KServe v2 over HTTP
kserve_rpc         KServe v2 over gRPC
kserve_header      what a KServe request says of its tensors, checked against the model
json_columns       JSON values to columns
tensor_types       what types are called on the wire, and which an input takes
templates          messages known by their bytes
messages           classes of the messages, in a descriptor pool of their own
proto_files        protos/*.proto, compiled
"""

__all__ = [
    "examples",
    "json_columns",
    "kserve",
    "kserve_header",
    "kserve_rpc",
    "messages",
    "templates",
    "tensor_types",
    "tfs_rest",
    "tfs_rpc",
    "wire",
]
