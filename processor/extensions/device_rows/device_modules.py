"""Write what the device runs, as StableHLO: a dense graph that gathers its rows itself, and changes of a pool in place.

    lines, rows of the host, pools, weights ─▶ gather, sum, put side by side ─▶ the dense graph of the package

The dense graph is the portable form that the package keeps beside machine code; it is called as it is, so what the
device computes from a row is what it would have computed from the row sent. Pools are one argument each, and one more
for the scales of scaled rows. Nothing here needs TensorFlow or jax.

A pool is changed by donating it: the result of an update takes its memory, and the argument is gone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

from freshet_serving.processor.backends.xla import stablehlo_dialects
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.extensions.device_rows.slot_layout import PlacedFeature, PoolKey, SlotLayout

ELEMENTS = {"float32": "f32", "float16": "f16", "bfloat16": "ui16", "int8": "i8"}
"""Types of a pool's elements by row type; numpy has no bfloat16, so its bits are sent."""
ROOT = 0.5
_MAIN = re.compile(r"func\.func (?:public )?@main\((?P<arguments>.*?)\) -> \(?(?P<results>.*?)\)? \{\n", re.DOTALL)
_TENSOR = re.compile(r"tensor<[^>]*>")


def _text(portable: bytes) -> str:
    from jaxlib.mlir.dialects import stablehlo

    with stablehlo_dialects() as context:
        try:
            return str(stablehlo.deserialize_portable_artifact(context, portable).operation.get_asm())
        except Exception as error:
            raise Corrupt("executable: its portable form cannot be read") from error


def _module(text: str) -> bytes:
    from jaxlib.mlir import ir

    with stablehlo_dialects():
        written = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(written)
        return written.getvalue()


def _tensor(shape: Sequence[int], element: str = "f32") -> str:
    return f"tensor<{'x'.join(map(str, (*shape, element)))}>"


def gathering(
    portable: bytes, rows: int, inputs: int, layouts: Mapping[int, SlotLayout], sizes: Mapping[PoolKey, int]
) -> bytes:
    """Return the dense graph, a portable artifact, with its rows gathered from pools, as clients compile it.

    Its arguments are the inputs, with lines in the place of those that have a layout; for each of these and each of its
    pools, the rows that the host sends, float32 [rows, places x dim]; the pools, each with its scales if it has some;
    and the weights. Layouts are by the number of the input, `sizes` are rows of each pool.
    """
    dense = _text(portable)
    signature = _MAIN.search(dense)
    if signature is None:
        raise Corrupt("executable: its portable form has no main function")
    arguments, results = _TENSOR.findall(signature["arguments"]), _TENSOR.findall(signature["results"])
    functions = dense[dense.index("func.func") : dense.rindex("}")]
    functions = functions.replace("@main(", "@dense(", 1).replace("func.func public @dense(", "func.func @dense(")
    functions = functions.replace("func.func @dense(", "func.func private @dense(")
    names, kinds = [f"%a{n}" for n in range(len(arguments))], list(arguments)
    operations, host = list[str](), list[str]()
    for at, layout in layouts.items():
        lines = _rows_of(arguments[at] if len(arguments) >= inputs else "", layout)
        writer = _Rows(lines, layout, sizes, f"{at}_", operations)
        kinds[at] = _tensor((lines, layout.line))
        host += writer.arguments()
        names[at] = writer.matrix(f"%a{at}", kinds[at])
    sent = [f"%a{n}: {kind}" for n, kind in enumerate(kinds)]
    sent[inputs:inputs] = [*host, *_pools(sizes)]
    several = len(results) > 1
    returned = f"({', '.join(results)})" if several else results[0]
    bound, outputs = "%out", "%out"
    if several:
        bound, outputs = f"%out:{len(results)}", ", ".join(f"%out#{n}" for n in range(len(results)))
    main = [
        f"func.func @main({', '.join(sent)}) -> {returned} {{",
        *operations,
        f"{bound} = func.call @dense({', '.join(names)}) : ({', '.join(arguments)}) -> {returned}",
        f"return {outputs} : {', '.join(results)}",
        "}",
    ]
    return _module("\n".join(["module @device_rows {", functions, *main, "}"]))


def _rows_of(kind: str, layout: SlotLayout) -> int:
    """Return the rows of an input of the dense graph; raise Corrupt unless it has the layout's columns."""
    shape = re.fullmatch(r"tensor<(\d+)x(\d+)xf32>", kind)
    if shape is None or int(shape[2]) != layout.width:
        raise Corrupt(f"executable: expected an input of {layout.width} columns, got {kind or 'none'}")
    return int(shape[1])


def _pools(sizes: Mapping[PoolKey, int]) -> list[str]:
    pools = []
    for n, (key, size) in enumerate(sizes.items()):
        pools.append(f"%p{n}: {_tensor((size, key.dim), ELEMENTS[key.dtype])}")
        if key.dtype == "int8":
            pools.append(f"%s{n}: {_tensor((size, 1))}")
    return pools


class _Rows:
    def __init__(
        self, rows: int, layout: SlotLayout, sizes: Mapping[PoolKey, int], prefix: str, operations: list[str]
    ) -> None:
        """Take what the input is made of, with a prefix of arguments' names, and the operations so far, to add to."""
        self._rows, self._layout, self._sizes, self._prefix = rows, layout, sizes, prefix
        self._numbers = {key: n for n, key in enumerate(sizes)}
        self._operations = operations

    def arguments(self) -> list[str]:
        return [
            f"%h{self._prefix}{self._numbers[key]}: {_tensor((self._rows, self._layout.places(key) * key.dim))}"
            for key in self._layout.pools
        ]

    def matrix(self, line: str, kind: str) -> str:
        """Return the name of the dense graph's input, made of the argument that holds lines, of a name and type."""
        columns: list[tuple[int, str, int]] = []
        for key in self._layout.pools:
            columns += self._features(self._numbers[key], key, line, kind)
        for host in self._layout.columns:
            part = self._slice(line, kind, (self._rows, self._layout.line), 1, host.first, host.width)
            columns.append((host.offset, part, host.width))
        ordered = [(name, _tensor((self._rows, width))) for _, name, width in sorted(columns)]
        whole = _tensor((self._rows, self._layout.width))
        listed = ", ".join(name for name, _ in ordered)
        kinds = ", ".join(part for _, part in ordered)
        return self._new(f"stablehlo.concatenate {listed}, dim = 1 : ({kinds}) -> {whole}")

    def _features(self, n: int, key: PoolKey, line: str, kind: str) -> list[tuple[int, str, int]]:
        """Return first column, name and width of each feature of one pool."""
        rows, count, dim = self._rows, self._layout.places(key), key.dim
        floats, words = _tensor((rows, count)), _tensor((rows, count), "i32")
        flags, gathered = _tensor((rows, count), "i1"), _tensor((rows, count, dim))
        bits = self._slice(line, kind, (rows, self._layout.line), 1, self._layout.span(key)[0], count)
        places = self._new(f"stablehlo.bitcast_convert {bits} : ({floats}) -> {words}")
        zero, ones = self._constant("0", words), self._constant("1", words)
        from_host = self._new(f"stablehlo.compare LT, {places}, {zero}, SIGNED : ({words}, {words}) -> {flags}")
        on_device = self._new(f"stablehlo.maximum {places}, {zero} : {words}")
        negated = self._new(f"stablehlo.negate {places} : {words}")
        sent = self._new(f"stablehlo.subtract {negated}, {ones} : {words}")
        sent = self._new(f"stablehlo.maximum {sent}, {zero} : {words}")
        device_rows = self._decoded(n, key, on_device, words)
        host_shape, host_flat = _tensor((rows, count * dim)), _tensor((rows * count, dim))
        host = self._new(f"stablehlo.reshape %h{self._prefix}{n} : ({host_shape}) -> {host_flat}")
        host_rows = self._gather(host, (rows * count, dim), "f32", sent, words)
        wide_flags = _tensor((rows, count, dim), "i1")
        wide = self._new(f"stablehlo.broadcast_in_dim {from_host}, dims = [0, 1] : ({flags}) -> {wide_flags}")
        chosen = self._new(f"stablehlo.select {wide}, {host_rows}, {device_rows} : {wide_flags}, {gathered}")
        features = []
        for feature in self._layout.pools[key]:
            part_type = _tensor((rows, feature.places, dim))
            part = self._slice(chosen, gathered, (rows, count, dim), 1, feature.first, feature.places)
            if not feature.listed:
                width = feature.places * dim
                name = self._new(f"stablehlo.reshape {part} : ({part_type}) -> {_tensor((rows, width))}")
                features.append((feature.offset, name, width))
                if feature.masked:
                    mask = self._present(places, words, feature)
                    features.append((feature.offset + width, mask, feature.places))
            else:
                matrix = _tensor((rows, dim))
                empty = self._new("stablehlo.constant dense<0.0> : tensor<f32>")
                name = self._new(
                    f"stablehlo.reduce({part} init: {empty}) applies stablehlo.add across dimensions = [1] : "
                    f"({part_type}, tensor<f32>) -> {matrix}"
                )
                if feature.power:
                    name = self._divided(name, places, words, feature, dim)
                features.append((feature.offset, name, dim))
        return features

    def _present(self, places: str, words: str, feature: PlacedFeature) -> str:
        """Return 1 for each place of a list that has a value, 0 for the others."""
        rows, count = self._rows, feature.places
        part_type, flags = _tensor((rows, count), "i32"), _tensor((rows, count), "i1")
        shape = (rows, int(words[len("tensor<") :].split("x")[1]))
        part = self._slice(places, words, shape, 1, feature.first, count, "i32")
        zero = self._constant("0", part_type)
        taken = self._new(f"stablehlo.compare NE, {part}, {zero}, SIGNED : ({part_type}, {part_type}) -> {flags}")
        return self._new(f"stablehlo.convert {taken} : ({flags}) -> {_tensor((rows, count))}")

    def _divided(self, summed: str, places: str, words: str, feature: PlacedFeature, dim: int) -> str:
        """Return the sums of lists over a power of the number of their values."""
        rows = self._rows
        floats, vector, matrix = _tensor((rows, feature.places)), _tensor((rows,)), _tensor((rows, dim))
        ones = self._present(places, words, feature)
        empty = self._new("stablehlo.constant dense<0.0> : tensor<f32>")
        number = self._new(
            f"stablehlo.reduce({ones} init: {empty}) applies stablehlo.add across dimensions = [1] : "
            f"({floats}, tensor<f32>) -> {vector}"
        )
        number = self._new(f"stablehlo.maximum {number}, {self._constant('1.0', vector)} : {vector}")
        if feature.power == ROOT:
            number = self._new(f"stablehlo.sqrt {number} : {vector}")
        divisor = self._new(f"stablehlo.broadcast_in_dim {number}, dims = [0] : ({vector}) -> {matrix}")
        return self._new(f"stablehlo.divide {summed}, {divisor} : {matrix}")

    def _decoded(self, n: int, key: PoolKey, places: str, words: str) -> str:
        rows, count, dim, size = self._rows, self._layout.places(key), key.dim, self._sizes[key]
        element, gathered = ELEMENTS[key.dtype], _tensor((rows, count, dim))
        rows_read = self._gather(f"%p{n}", (size, dim), element, places, words)
        if key.dtype == "float32":
            return rows_read
        coded = _tensor((rows, count, dim), element)
        if key.dtype == "bfloat16":
            half = _tensor((rows, count, dim), "bf16")
            rows_read, coded = self._new(f"stablehlo.bitcast_convert {rows_read} : ({coded}) -> {half}"), half
        decoded = self._new(f"stablehlo.convert {rows_read} : ({coded}) -> {gathered}")
        if key.dtype != "int8":
            return decoded
        scales = self._gather(f"%s{n}", (size, 1), "f32", places, words)
        single = _tensor((rows, count, 1))
        wide = self._new(f"stablehlo.broadcast_in_dim {scales}, dims = [0, 1, 2] : ({single}) -> {gathered}")
        return self._new(f"stablehlo.multiply {decoded}, {wide} : {gathered}")

    def _gather(self, source: str, shape: tuple[int, int], element: str, places: str, words: str) -> str:
        count = int(words[len("tensor<") :].split("x")[1])
        result = _tensor((self._rows, count, shape[1]), element)
        return self._new(
            f'"stablehlo.gather"({source}, {places}) {{dimension_numbers = #stablehlo.gather<offset_dims = [2], '
            "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, "
            f"slice_sizes = array<i64: 1, {shape[1]}>, indices_are_sorted = false}} : "
            f"({_tensor(shape, element)}, {words}) -> {result}"
        )

    def _slice(
        self, source: str, kind: str, shape: Sequence[int], dimension: int, first: int, count: int, element: str = "f32"
    ) -> str:
        bounds = [f"{first}:{first + count}" if n == dimension else f"0:{size}" for n, size in enumerate(shape)]
        sliced = [count if n == dimension else size for n, size in enumerate(shape)]
        return self._new(f"stablehlo.slice {source} [{', '.join(bounds)}] : ({kind}) -> {_tensor(sliced, element)}")

    def _constant(self, value: str, kind: str) -> str:
        return self._new(f"stablehlo.constant dense<{value}> : {kind}")

    def _new(self, operation: str) -> str:
        name = f"%v{len(self._operations)}"
        self._operations.append(f"{name} = {operation}")
        return name


def zeros(size: int, dim: int, element: str) -> bytes:
    """Return what makes a pool of zeros, of elements of ELEMENTS."""
    pool, zero = _tensor((size, dim), element), "0.0" if element.startswith("f") else "0"
    return _module(
        f"module @zeros {{ func.func @main() -> {pool} {{ %0 = stablehlo.constant dense<{zero}> : tensor<{element}>\n"
        f"%1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<{element}>) -> {pool}\nreturn %1 : {pool} }} }}"
    )


def update(size: int, dim: int, element: str, count: int) -> bytes:
    """Return what writes rows to a pool, which it takes: (pool, places int32 [count, 1], rows) to the pool.

    Where places are equal, so are the rows.
    """
    pool, rows, scalar = _tensor((size, dim), element), _tensor((count, dim), element), f"tensor<{element}>"
    places = _tensor((count, 1), "i32")
    return _module(
        f"module @update {{ func.func @main(%pool: {pool} {{tf.aliasing_output = 0 : i32}}, %at: {places}, "
        f"%rows: {rows}) -> {pool} {{\n"
        f'%0 = "stablehlo.scatter"(%pool, %at, %rows) ({{ ^bb0(%a: {scalar}, %b: {scalar}):\n'
        f"stablehlo.return %b : {scalar} }}) {{scatter_dimension_numbers = #stablehlo.scatter<"
        "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
        "index_vector_dim = 1>, "
        f"indices_are_sorted = false, unique_indices = false}} : ({pool}, {places}, {rows}) -> {pool}\n"
        f"return %0 : {pool} }} }}"
    )
