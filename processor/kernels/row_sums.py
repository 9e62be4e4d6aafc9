"""Add up rows with the sum kept in registers from one row to the next.

Adding to memory row by row would load and store the sum of a list of 128 float32 once for each of its rows. Here a tile
of columns is loaded, all rows of the list are added to it in their order, and it is stored: the same sums, to the bit.
"""

# mypy: ignore-errors

import numba as nb
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freshet_serving.processor.kernels.conversion import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    from_bf16,
    from_f16,
    from_f32,
    from_i8,
)
from freshet_serving.processor.kernels.kernel import inlined, kernel

TILE, LANES = 64, 16
SCALE = 8
"""Offset from the address of a row's address to the address of its scale's address."""
INT64, FLOAT = ir.IntType(64), ir.FloatType()


def _adder(read, element_nbytes, scaled, lanes, vectors, begin):
    """Return an intrinsic (target, rows, stride, count, first) that adds some columns of several rows.

    It adds elements [first, first + lanes * vectors) of `count` rows of a type to those of target, or with `begin` puts
    their sum there; the addresses of the rows are at rows, rows + stride, ...
    """

    @intrinsic
    def add(typingctx, target, rows, stride, count, first):
        def codegen(context, builder, signature, args):
            target, rows, stride, count, first = args
            vector = ir.VectorType(FLOAT, lanes)

            def number(value):
                return ir.Constant(INT64, value)

            def at(address, kind):
                return builder.inttoptr(address, kind.as_pointer())

            def row_of(index):
                row = builder.add(rows, builder.mul(index, stride))
                return row, builder.add(builder.load(at(row, INT64)), skipped)

            def values(row, source):
                scale = None
                if scaled:
                    scale = builder.load(at(builder.load(at(builder.add(row, number(SCALE)), INT64)), FLOAT))
                offsets = [number(element_nbytes * lanes * k) for k in range(vectors)]
                return [read(builder, builder.add(source, offset), scale, lanes) for offset in offsets]

            begins = builder.add(target, builder.mul(first, number(4)))
            places = [at(builder.add(begins, number(4 * lanes * k)), vector) for k in range(vectors)]
            skipped = builder.mul(first, number(element_nbytes))
            sums = [cgutils.alloca_once(builder, vector) for _ in places]
            starting = values(*row_of(number(0))) if begin else [builder.load(place, align=4) for place in places]
            for value, kept in zip(starting, sums):
                builder.store(value, kept)
            with cgutils.for_range_slice(builder, number(int(begin)), count, number(1), INT64) as (index, _):
                for value, kept in zip(values(*row_of(index)), sums):
                    builder.store(builder.fadd(builder.load(kept), value), kept)
            for place, kept in zip(places, sums):
                builder.store(builder.load(kept), place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return add


def _adders(read, element_nbytes, scaled=False):
    """Return those that begin a sum, then those that go on with one: of a tile, of 8 columns, of one."""
    return [
        _adder(read, element_nbytes, scaled, lanes, vectors, begin)
        for begin in (True, False)
        for lanes, vectors in ((LANES, TILE // LANES), (8, 1), (1, 1))
    ]


def _type_adder(read, element_nbytes, scaled=False):
    """Return the function (target, rows, stride, count, width, more) that adds up rows of one type.

    It is inlined, because an import would compile a function of a closure anew: Numba's cache does not find it.
    """
    begin_tile, begin_8, begin_1, add_tile, add_8, add_1 = _adders(read, element_nbytes, scaled)

    @inlined
    def add(target, rows, stride, count, width, more):
        tiled, whole = width & ~(TILE - 1), width & ~7
        if not more:
            for first in range(0, tiled, TILE):
                begin_tile(target, rows, stride, count, first)
            for first in range(tiled, whole, 8):
                begin_8(target, rows, stride, count, first)
            for first in range(whole, width):
                begin_1(target, rows, stride, count, first)
        else:
            for first in range(0, tiled, TILE):
                add_tile(target, rows, stride, count, first)
            for first in range(tiled, whole, 8):
                add_8(target, rows, stride, count, first)
            for first in range(whole, width):
                add_1(target, rows, stride, count, first)

    return add


_add_f32, _add_f16, _add_bf16 = _type_adder(from_f32, 4), _type_adder(from_f16, 2), _type_adder(from_bf16, 2)
_add_i8 = _type_adder(from_i8, 1, scaled=True)


@kernel(nb.void(*[nb.int64] * 7))
def add_rows(dtype, target, rows, stride, count, width, more):
    """Add up `count` rows of a type, one after another, to what the target holds if `more`, else in its place.

    Args:
        rows: Address of the first row's address; that of its scale is SCALE bytes after it.
        stride: Bytes from one row's address to the next row's.
        count: At least 1 without `more`.
    """
    if dtype == FLOAT32:
        _add_f32(target, rows, stride, count, width, more)
    elif dtype == FLOAT16:
        _add_f16(target, rows, stride, count, width, more)
    elif dtype == BFLOAT16:
        _add_bf16(target, rows, stride, count, width, more)
    else:
        _add_i8(target, rows, stride, count, width, more)
