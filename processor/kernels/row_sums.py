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

TILE, LANES = 64, 16
SCALE = 24
"""Offset from the address of a row's address to the address of its scale's address."""
INT64, FLOAT = ir.IntType(64), ir.FloatType()


def _adder(read, element_nbytes, scaled, lanes, vectors):
    """Return an intrinsic (target, rows, stride, count, first) that adds some columns of several rows to a target.

    It adds elements [first, first + lanes * vectors) of `count` rows of a type to those of target; the addresses of the
    rows are at rows, rows + stride, ...
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

            begin = builder.add(target, builder.mul(first, number(4)))
            places = [at(builder.add(begin, number(4 * lanes * k)), vector) for k in range(vectors)]
            sums = [cgutils.alloca_once(builder, vector) for _ in places]
            for place, kept in zip(places, sums):
                builder.store(builder.load(place, align=4), kept)
            skipped = builder.mul(first, number(element_nbytes))
            with cgutils.for_range(builder, count) as loop:
                row = builder.add(rows, builder.mul(loop.index, stride))
                source = builder.add(builder.load(at(row, INT64)), skipped)
                scale = None
                if scaled:
                    scale = builder.load(at(builder.load(at(builder.add(row, number(SCALE)), INT64)), FLOAT))
                for k, kept in enumerate(sums):
                    value = read(builder, builder.add(source, number(element_nbytes * lanes * k)), scale, lanes)
                    builder.store(builder.fadd(builder.load(kept), value), kept)
            for place, kept in zip(places, sums):
                builder.store(builder.load(kept), place, align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return add


def _adders(read, element_nbytes, scaled=False):
    return [
        _adder(read, element_nbytes, scaled, lanes, vectors)
        for lanes, vectors in ((LANES, TILE // LANES), (8, 1), (1, 1))
    ]


_f32x64, _f32x8, _f32 = _adders(from_f32, 4)
_f16x64, _f16x8, _f16 = _adders(from_f16, 2)
_bf16x64, _bf16x8, _bf16 = _adders(from_bf16, 2)
_i8x64, _i8x8, _i8 = _adders(from_i8, 1, scaled=True)


@nb.njit(nb.void(*[nb.int64] * 6), cache=True, nogil=True)
def add_rows(dtype, target, rows, stride, count, width):
    """Add `count` rows of a type to `width` float32, one after another.

    Args:
        dtype: Code of the rows' type.
        target: Address of `width` float32; added to.
        rows: Address of the first row's address; that of its scale is SCALE bytes after it.
        stride: Bytes from one row's address to the next row's.
        count: Number of rows.
        width: Elements per row.
    """
    tiled, whole = width & ~(TILE - 1), width & ~7
    if dtype == FLOAT32:
        for first in range(0, tiled, TILE):
            _f32x64(target, rows, stride, count, first)
        for first in range(tiled, whole, 8):
            _f32x8(target, rows, stride, count, first)
        for first in range(whole, width):
            _f32(target, rows, stride, count, first)
    elif dtype == FLOAT16:
        for first in range(0, tiled, TILE):
            _f16x64(target, rows, stride, count, first)
        for first in range(tiled, whole, 8):
            _f16x8(target, rows, stride, count, first)
        for first in range(whole, width):
            _f16(target, rows, stride, count, first)
    elif dtype == BFLOAT16:
        for first in range(0, tiled, TILE):
            _bf16x64(target, rows, stride, count, first)
        for first in range(tiled, whole, 8):
            _bf16x8(target, rows, stride, count, first)
        for first in range(whole, width):
            _bf16(target, rows, stride, count, first)
    else:
        for first in range(0, tiled, TILE):
            _i8x64(target, rows, stride, count, first)
        for first in range(tiled, whole, 8):
            _i8x8(target, rows, stride, count, first)
        for first in range(whole, width):
            _i8(target, rows, stride, count, first)
