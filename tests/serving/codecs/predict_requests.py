"""TensorFlow Serving's predict requests as tests write them."""

from freshet_serving.serving.codecs import tfs_rpc

DT_FLOAT, DT_DOUBLE, DT_STRING, DT_INT64 = 1, 2, 7, 9
FIELDS = {DT_FLOAT: "float_val", DT_DOUBLE: "double_val", DT_STRING: "string_val", DT_INT64: "int64_val"}


def predict_request(*tensors, model="ctr"):
    """Return the message with tensors (name, dtype, shape, values); values are a list, or bytes as tensor_content."""
    request = tfs_rpc.Request()
    request.model_spec.name = model
    for name, dtype, shape, values in tensors:
        into = request.inputs[name]
        into.dtype = dtype
        for size in shape:
            into.tensor_shape.dim.add(size=size)
        if isinstance(values, bytes):
            into.tensor_content = values
        else:
            getattr(into, FIELDS[dtype]).extend(values)
    return request
