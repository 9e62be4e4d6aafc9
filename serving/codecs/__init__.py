"""Protocol codecs as pure functions: decode bytes and headers to named columns, and encode outputs. No I/O, no state.

Decoders raise BadInput for what does not fit the model, and TooLarge for a request beyond a limit, before its values
are read. Encoders take arrays [n, ...] by name of the output, all with the same n, and the version that answered.
`memory` is None where shared memory is not served; a timeout or version of None means none, a name of "" the default.

wire               limits, content codings, JSON and timeouts, shared by both HTTP protocols
tfs_rest           TensorFlow Serving's REST API
tfs_rpc            TensorFlow Serving's Predict over gRPC
examples           tf.Example, the input format of classify and regress
kserve             KServe v2 over HTTP
kserve_rpc         KServe v2 over gRPC
kserve_header      tensor descriptions of a KServe request, checked against the model
user_calls         what a request says about a user whose inputs are kept
json_columns       JSON values to columns
json_slices        long JSON parsed in slices
sequence_tensors   the tensors that tell lists apart, one for all columns of a sequence
tensor_types       names of tensor types on the wire, and the types that an input accepts
validation         strict validation of JSON documents
templates          cache of parsed messages, recognised by the bytes around their tensors
messages           protobuf message classes, in a private descriptor pool; protos.binpb is protos/*.proto, compiled
"""

__all__ = [
    "examples",
    "json_columns",
    "kserve",
    "kserve_header",
    "kserve_rpc",
    "messages",
    "sequence_tensors",
    "templates",
    "tensor_types",
    "tfs_rest",
    "tfs_rpc",
    "user_calls",
    "validation",
    "wire",
]
