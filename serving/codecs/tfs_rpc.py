"""Decode and encode TensorFlow Serving's Predict over gRPC: PredictRequest to columns, outputs to PredictResponse.

A tensor comes as tensor_content or in its type's *_val field. As in TensorFlow, if *_val has fewer values than the
shape, the last value is repeated; if it has none, zeros are used. If a similar request has been seen (templates),
tensors of fixed width there are read in place: tensor_content and float_val, but not int64_val. Replies use *_val,
which every client reads; packed, its bytes equal those of tensor_content.

A tensor without dimensions is one row of an input of one value a row; if all inputs are, so are the outputs.

A ragged input X is one tensor of shape [n, k], where every row has k values, or two, as in KServe: X with all values,
shape [total], and X.row_splits, or X__values and X__offsets; columns of a sequence may share the second one
(sequence_tensors).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, ColumnLayout, PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits, RequestSize
from freshet_serving.processor.features.message_tree import MessageTree
from freshet_serving.processor.features.sequences import unpadded
from freshet_serving.processor.package import MAX_RANK, Input, Manifest
from freshet_serving.serving.codecs import user_calls
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.sequence_tensors import LENGTHS, ROW_SPLITS, ListTensors, list_tensors
from freshet_serving.serving.codecs.templates import Placeholder, Templates, cut, fields, filler
from freshet_serving.serving.codecs.tensor_types import (
    BY_NAME,
    BY_NUMBER,
    TensorType,
    converted,
    declared,
    fits,
    flat_outputs,
    names_of_outputs,
    narrowed,
    row_of,
    takes,
    type_of,
)
from freshet_serving.serving.codecs.wire import SIGNATURE, show

if TYPE_CHECKING:
    from freshet_serving.processor.features.user_calls import UserCall

INPUTS, VALUE, FLOAT_VAL, TENSOR_CONTENT = 2, 2, 5, 4
# At most this many names are read, of a request and for error messages.
MAX_NAMES = 1000
Request, Response = message("tensorflow.serving.PredictRequest"), message("tensorflow.serving.PredictResponse")
TREE = MessageTree(Request.DESCRIPTOR)
DataType = message("tensorflow.TensorProto").DESCRIPTOR.fields_by_name["dtype"].enum_type


class PredictParams(NamedTuple):
    """Parameters of a predict request: its version, label or neither, and the requested outputs; () for all."""

    model: str
    version: int | None = None
    label: str | None = None
    signature: str = ""
    outputs: tuple[str, ...] = ()


def predict_params(spec: Any, outputs: Sequence[str] = ()) -> PredictParams:
    """Return the parameters that a ModelSpec gives; raise BadInput if its version is invalid."""
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    if version is not None and version < 0:
        raise BadInput(f"model_spec.version: expected 0 or more, got {version}")
    label = spec.version_label if choice == "version_label" else None
    # Version 0 means the newest, as over HTTP.
    return PredictParams(spec.name, version or None, label, spec.signature_name, tuple(outputs[:MAX_NAMES]))


class PredictDecoder:
    """A request being decoded: params is known before the model is, columns() afterwards."""

    def __init__(self, data: bytes, templates: Templates[PredictParams], limits: RequestLimits = DEFAULTS) -> None:
        self._data, self._templates, self._limits = data, templates, limits
        # Whether every tensor has no dimensions.
        self.scalar = False
        # Names of outputs that leave out their last dimension, as the request's tensors do.
        self.flat: frozenset[str] = frozenset()
        self._template = templates.find(data)
        if self._template is not None:
            self.params = self._template.params
        else:
            self._parse()

    def columns(self, manifest: Manifest, limits: RequestLimits = DEFAULTS) -> Mapping[str, Column]:
        template = self._template
        if template is not None:
            if template.manifest is manifest:
                return PackedColumns(self._data, 0, template.places)
            self._parse()
        tensors, call = _without_user_call(self._message.inputs, self.params.signature, manifest)
        if call is not None:
            self.params = self.params._replace(signature=user_calls.without_reserved(self.params.signature))
            manifest = user_calls.readable(manifest)
        tensors = _renamed(tensors, manifest)
        _check_names(tensors, manifest)
        _check_outputs(self.params.outputs, names_of_outputs(manifest, self.params.signature))
        extent, lists = RequestSize(limits), list_tensors(manifest)
        inputs = {spec.name: _column(spec, tensors, extent, lists) for spec in manifest.expected_inputs(tensors)}
        ranks = {len(tensors[name].tensor_shape.dim) for name in inputs}
        self.scalar = bool(ranks) and not any(ranks)
        if max(ranks, default=0) <= 1:
            self.flat = flat_outputs(manifest, self.params.signature)
        if call is not None:
            # The answer may have no row.
            self.scalar = False
            return user_calls.UserInputs(inputs, call)
        if not (self.scalar or self.flat):
            self._learn(inputs, tensors, manifest)
        return inputs

    def _parse(self) -> None:
        TREE.check_limits(self._data, self._limits)
        try:
            self._message = request = Request.FromString(self._data)
        except DecodeError:
            raise BadInput("request: expected a PredictRequest") from None
        if not request.HasField("model_spec"):
            raise BadInput("Missing ModelSpec")
        self.params = predict_params(request.model_spec, request.output_filter)

    def _learn(self, inputs: Mapping[str, Column], tensors: Mapping[str, Any], manifest: Manifest) -> None:
        """Store the request as a template if each of its tensors is one array of fixed width."""
        places, contents = {}, {}
        for spec in manifest.expected_inputs(inputs):
            array, tensor = inputs[spec.name], tensors[spec.name]
            if not isinstance(array, np.ndarray) or not (tensor.tensor_content or len(tensor.float_val) == array.size):
                return
            if spec.declared or BY_NUMBER[tensor.dtype].dtype != array.dtype:
                # A converted array differs from the bytes that were sent.
                return
            places[spec.name] = ColumnLayout(spec.name, array.dtype, len(array), spec.columns, 0)
            contents[spec.name] = array.tobytes()
        placeholders, data = {}, self._data
        for number, start, stop in fields(data, 0, len(data)):
            if number == INPUTS:
                entry = {n: (a, b) for n, a, b in fields(data, start, stop)}
                value = entry.get(VALUE, (0, 0))
                offsets = {n: a for n, a, _ in fields(data, *value)}
                name = data[slice(*entry.get(1, (0, 0)))].decode()
                name = manifest.own_names.get(name, name)
                at = offsets.get(TENSOR_CONTENT, offsets.get(FLOAT_VAL))
                if at is not None and name in contents:
                    placeholders[name] = Placeholder(at, contents[name])
        self._templates.learn(data, self.params, manifest, places, placeholders)


def _without_user_call(
    tensors: Mapping[str, Any], signature: str, manifest: Manifest
) -> tuple[Mapping[str, Any], UserCall | None]:
    """Return the tensors without those that say something about a kept user, and what they say."""
    if user_calls.ID not in tensors or user_calls.is_own_input(manifest):
        return tensors, None
    values = {name: _only_value(tensors[name], name) for name in (user_calls.ID, user_calls.VERSION) if name in tensors}
    rest = {name: tensor for name, tensor in tensors.items() if name not in values}
    return rest, user_calls.of_names(signature, values)


def _only_value(tensor: Any, name: str) -> Any:
    """Return the value of a tensor of one, or of as many equal ones as there are rows."""
    values, content = tensor.string_val or tensor.int64_val, tensor.tensor_content
    if tensor.dtype == DataType.values_by_name["DT_INT64"].number and not len(content) % 8:
        values = values or np.frombuffer(content, "<i8").tolist()
    if not values or any(value != values[0] for value in values):
        raise BadInput(f"{name}: expected one value, an int64 or a string in string_val: a request is about one user")
    return values[0]


def _renamed(tensors: Mapping[str, Any], manifest: Manifest) -> Mapping[str, Any]:
    """Return the tensors by our names, if some have those of the model's signature, or Merlin's for those of lists."""
    renames = list_tensors(manifest).others
    theirs = {name: ours for name, ours in renames.items() if name in tensors}
    if not theirs or any(name in theirs for name in (i.name for i in manifest.inputs)):
        return tensors
    if twice := [name for name, ours in theirs.items() if ours in tensors]:
        raise BadInput(f"inputs: expected one of {theirs[twice[0]]} and {twice[0]}, got both")
    return {theirs.get(name, name): tensors[name] for name in tensors}


def _check_names(tensors: Mapping[str, Any], manifest: Manifest) -> None:
    names = {i.name for i in manifest.inputs}
    lists = list_tensors(manifest)
    optional = lists.specs.keys()
    sent = set(islice(tensors, len(names) + len(optional) + MAX_NAMES))
    fillers = manifest.fillers
    # A ragged input is left out with its row_splits, or not at all.
    required = names - fillers.keys() if fillers else names
    required |= {name for name, splits_name in lists.own.items() if splits_name in sent} if fillers else set()
    if not required <= sent <= names | optional:
        missing = sorted(name for name in required if name not in tensors)
        extra = sorted(show(name) for name in sent - names - optional)
        raise BadInput(
            f"input size does not match signature: {len(tensors)}!={len(names)} len({{{','.join(sorted(names))}}}). "
            f"Sent extra: {{{','.join(extra)[:256]}}}. Missing but required: {{{','.join(missing)}}}."
        )
    lists.check_shared(sent)


def _check_outputs(outputs: Sequence[str], names: Collection[str]) -> None:
    for name in outputs:
        if name not in names:
            listed = "{" + ",".join(names) + "}"
            raise BadInput(
                f"output tensor alias not found in signature: {show(name)} Outputs expected to be in the set {listed}."
            )
    if len(set(outputs)) != len(outputs):
        raise BadInput(f"duplicate output tensor alias: {show(first_of(n for n in outputs if outputs.count(n) > 1))}")


def _column(spec: Input, tensors: Mapping[str, Any], extent: RequestSize, lists: ListTensors) -> Column:
    tensor = tensors[spec.name]
    shape = _shape(tensor, spec)
    if not spec.ragged:
        return _plain(tensor, spec, shape, extent)
    beside = lists.specs[lists.beside(spec.name, tensors)]
    if beside.name in tensors:
        padded = beside.name.endswith(LENGTHS)
        if len(shape) != 1 + padded:
            raise BadInput(
                f"{spec.name}: expected shape {'[n,L]' if padded else '[total]'} beside {beside.name}, got {shape}"
            )
        counted = _shape(tensors[beside.name], beside)
        extent.add_rows(math.prod(counted) - (not padded), beside.name)
        splits = _values(tensors[beside.name], beside, _rows(beside, counted), extent)
        extent.add(spec, 0, math.prod(shape))
        if padded:
            assert isinstance(splits, np.ndarray), "ints"
            if len(splits) != shape[0]:
                raise BadInput(f"{spec.name}: expected {len(splits)} rows, as {beside.name} has, got {shape[0]}")
            return unpadded(_values(tensor, spec, math.prod(shape), extent), shape[1], splits, beside.name)
    else:
        if len(shape) != 2:
            raise BadInput(f"{spec.name}: expected shape [n,k], or [total] and {spec.name}{ROW_SPLITS}, got {shape}")
        extent.add(spec, shape[0], math.prod(shape))
        splits = np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
    assert isinstance(splits, np.ndarray), "ints"
    return Ragged(_values(tensor, spec, math.prod(shape), extent), splits)


def _plain(tensor: Any, spec: Input, shape: list[int], extent: RequestSize) -> NDArray[Any] | Strings:
    rows = _rows(spec, shape)
    extent.add(spec, rows, math.prod(shape))
    values = _values(tensor, spec, math.prod(shape), extent)
    return values.reshape(rows, spec.columns) if spec.columns and not isinstance(values, Strings) else values


def _rows(spec: Input, shape: list[int]) -> int:
    """Return the number of rows in the shape of an input that is not ragged."""
    if not shape and math.prod(row_of(spec)) == 1:
        return 1
    if not shape or not fits(spec, shape):
        expected = ",".join(["n", *map(str, row_of(spec))])
        raise BadInput(f"{spec.name}: expected shape [{expected}], got {shape}")
    return shape[0]


def _shape(tensor: Any, spec: Input) -> list[int]:
    sent = BY_NUMBER.get(tensor.dtype)
    if sent is None or not takes(spec, sent):
        descriptor = DataType.values_by_number.get(tensor.dtype)
        type_name = descriptor.name if descriptor is not None else str(tensor.dtype)
        raise BadInput(f"{spec.name}: Expects arg[0] to be {declared(spec).dt} but {type_name} is provided")
    # TensorFlow Serving reads a shape of unknown rank as one without dimensions.
    shape = [dim.size for dim in tensor.tensor_shape.dim[: MAX_RANK + 1]]
    if len(shape) > MAX_RANK or any(not 0 <= size < 2**31 for size in shape):
        raise BadInput(f"{spec.name}: expected at most {MAX_RANK} dimensions from 0 to {2**31 - 1}, got {shape}")
    return shape


def _values(tensor: Any, spec: Input, count: int, extent: RequestSize) -> NDArray[Any] | Strings:
    name, sent = spec.name, BY_NUMBER[tensor.dtype]
    content, values = tensor.tensor_content, getattr(tensor, sent.field)
    if content:
        if sent.dtype is None:
            raise BadInput(f"{name}: expected string_val, got tensor_content")
        expected = count * sent.dtype.itemsize
        if len(values) or len(content) != expected:
            lengths = f"{len(content)} and values" if len(values) else str(len(content))
            raise BadInput(f"{name}: expected {expected} bytes of tensor_content, got {lengths}")
        return converted(spec, np.frombuffer(content, sent.dtype))
    lacking = count - len(values)
    if lacking and not len(values):
        _check_empty(tensor, sent.field, name)
    if lacking < 0:
        raise BadInput(f"{name}: expected {count} values, got {len(values)}")
    if sent.dtype is None:
        last = values[-1] if values else b""
        extent.repeat(name, lacking, 8 + len(last))
        return Strings.of([*values, *[last] * lacking] if lacking else values)
    array = _number_array(name, values, sent)
    if lacking:
        extent.repeat(name, lacking, array.itemsize)
        last = array[-1] if len(array) else 0
        array = np.concatenate([array, np.full(lacking, last, array.dtype)])
    return converted(spec, array)


def _check_empty(tensor: Any, expected: str, name: str) -> None:
    """Raise BadInput if a tensor whose own field is empty has its values in that of another type."""
    fields_set = [field.name for field, _ in tensor.ListFields() if field.name.endswith("_val")]
    if fields_set:
        raise BadInput(f"{name}: expected {expected} or tensor_content, got {fields_set[0]}")


def _number_array(name: str, values: Any, sent: TensorType) -> NDArray[Any]:
    """Return the values of a tensor's field in its type; halves are stored as their bits."""
    if sent.name == "float16":
        return (np.array(values, np.int64) & 0xFFFF).astype(np.uint16).view(np.float16)
    return narrowed(name, values, sent)


def encode(
    outputs: Mapping[str, NDArray[Any]],
    params: PredictParams,
    version: int,
    scalar: bool = False,
    flat: Container[str] = (),
) -> bytes:
    """Encode the reply, with values in the *_val field of their type.

    If the request's tensors had no dimensions (`scalar`), the outputs have no dimension of rows; those in `flat` leave
    out their last one, of one column.
    """
    parts: list[bytes | NDArray[Any]] = []
    for name in params.outputs or outputs:
        array = np.ascontiguousarray(outputs[name])
        if name in flat:
            array = array.reshape(-1)
        if scalar:
            array = array.reshape(array.shape[1:])
        if array.dtype != np.float32 or not array.size:
            parts.append(_encoded_tensor(name, array))
            continue
        before, after = _entry(name, array.shape)
        parts += [before, array, after]
    parts.append(_spec(params.model, version, params.signature or SIGNATURE))
    # Arrays are buffers; NumPy declares them as such from Python 3.12 on.
    return b"".join(parts)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _entry(name: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Return the bytes before and after the values of one output of a reply.

    Concatenated messages are merged, maps entry by entry, so each output can be encoded on its own.
    """
    reply = Response()
    tensor = reply.outputs[name]
    tensor.dtype = BY_NAME["float32"].number
    # The shape of a scalar is a message too.
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    values = filler(4 * math.prod(shape))
    tensor.float_val.extend(np.frombuffer(values, "<f4"))
    return cut(reply.SerializeToString(), values)


def _encoded_tensor(name: str, array: NDArray[Any]) -> bytes:
    reply, kind = Response(), type_of(array.dtype)
    tensor = reply.outputs[name]
    tensor.dtype = kind.number
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    flat = array.reshape(-1)
    values = (flat.view(np.uint16) if kind.name == "float16" else flat).tolist()
    getattr(tensor, kind.field).extend([text.encode() for text in values] if kind.dtype is None else values)
    encoded: bytes = reply.SerializeToString()
    return encoded


@lru_cache(maxsize=1024)
def _spec(model: str, version: int, signature: str) -> bytes:
    reply = Response()
    set_spec(reply.model_spec, model, version, signature)
    encoded: bytes = reply.SerializeToString()
    return encoded


def set_spec(spec: Any, model: str, version: int, signature: str) -> None:
    spec.name, spec.version.value, spec.signature_name = model, version, signature
