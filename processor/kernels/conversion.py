"""Convert float32 rows to a table's row type and back, element by element.

float32    unchanged
float16    nearest, ties to even
bfloat16   nearest, ties to even: the upper half of the float32
int8       round(x / scale), ties to even, with one float32 scale per row = max |x| / 127, 0 for a row of zeros

The way back is exact for the first three; for int8 it is one float32 product, step * scale. The table of the types is
processor.package.tensors; only this module knows how each is written and read.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import (
    copy_f32x8,
    load_f32,
    load_f32_bits,
    store_f32,
    store_i8,
    store_i16,
)
from freshet_serving.processor.package import ROW_TYPES

FLOAT32, FLOAT16, BFLOAT16 = (ROW_TYPES[name].code for name in ("float32", "float16", "bfloat16"))
STEPS = 127

# Adding and then subtracting this rounds a float32 below 2**22 to the nearest integer, ties to even.
ROUNDER = np.float32(1.5 * 2**23)


@intrinsic
def store_f16(typingctx, address, value):
    """Store a float32 as the nearest float16, ties to even."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.HalfType().as_pointer())
        builder.store(builder.fptrunc(args[1], ir.HalfType()), pointer, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


def _vector(kind, lanes):
    return ir.VectorType(kind, lanes)


def from_f32(builder, source, scale, lanes):
    return builder.load(builder.inttoptr(source, _vector(ir.FloatType(), lanes).as_pointer()), align=4)


def from_f16(builder, source, scale, lanes):
    half = builder.load(builder.inttoptr(source, _vector(ir.HalfType(), lanes).as_pointer()), align=2)
    return builder.fpext(half, _vector(ir.FloatType(), lanes))


def from_bf16(builder, source, scale, lanes):
    wide = _vector(ir.IntType(32), lanes)
    bits = builder.load(builder.inttoptr(source, _vector(ir.IntType(16), lanes).as_pointer()), align=2)
    shifted = builder.shl(builder.zext(bits, wide), ir.Constant(wide, [16] * lanes))
    return builder.bitcast(shifted, _vector(ir.FloatType(), lanes))


def from_i8(builder, source, scale, lanes):
    floats = _vector(ir.FloatType(), lanes)
    steps = builder.load(builder.inttoptr(source, _vector(ir.IntType(8), lanes).as_pointer()), align=1)
    first = builder.insert_element(ir.Constant(floats, ir.Undefined), scale, ir.Constant(ir.IntType(32), 0))
    every = builder.shuffle_vector(first, first, ir.Constant(_vector(ir.IntType(32), lanes), [0] * lanes))
    return builder.fmul(builder.sitofp(steps, floats), every)


def _mover(read, lanes):
    """Return an intrinsic (target, source, scale) that converts `lanes` elements of another type to float32."""

    @intrinsic
    def move(typingctx, target, source, scale):
        def codegen(context, builder, signature, args):
            pointer = builder.inttoptr(args[0], _vector(ir.FloatType(), lanes).as_pointer())
            builder.store(read(builder, args[1], args[2], lanes), pointer, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32), codegen

    return move


copy_f16x8, copy_f16 = _mover(from_f16, 8), _mover(from_f16, 1)
copy_bf16x8, copy_bf16 = _mover(from_bf16, 8), _mover(from_bf16, 1)
copy_i8x8, copy_i8 = _mover(from_i8, 8), _mover(from_i8, 1)


@inlined
def copy_row(target, source, width):
    """Copy a row of float32 between two addresses."""
    whole = width & ~7
    for j in range(0, whole, 8):
        copy_f32x8(target + 4 * j, source + 4 * j)
    for j in range(whole, width):
        store_f32(target + 4 * j, load_f32(source + 4 * j))


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def copy_typed(dtype, target, source, scale, width):
    """Copy a row of any type to float32; `scale` is read only for scaled types."""
    whole, one = width & ~7, np.float32(1.0)
    if dtype == FLOAT32:
        copy_row(target, source, width)
    elif dtype == FLOAT16:
        for j in range(0, whole, 8):
            copy_f16x8(target + 4 * j, source + 2 * j, one)
        for j in range(whole, width):
            copy_f16(target + 4 * j, source + 2 * j, one)
    elif dtype == BFLOAT16:
        for j in range(0, whole, 8):
            copy_bf16x8(target + 4 * j, source + 2 * j, one)
        for j in range(whole, width):
            copy_bf16(target + 4 * j, source + 2 * j, one)
    else:
        step = load_f32(scale)
        for j in range(0, whole, 8):
            copy_i8x8(target + 4 * j, source + j, step)
        for j in range(whole, width):
            copy_i8(target + 4 * j, source + j, step)


@inlined
def scale_of(source, width):
    """Return the int8 scale of a row of float32."""
    most = np.float32(0.0)
    for j in range(width):
        most = max(most, abs(load_f32(source + 4 * j)))
    return most / np.float32(STEPS)


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def store_typed(dtype, target, scale, source, width):
    """Store a row of finite float32 as any type; `scale` is written only for scaled types."""
    if dtype == FLOAT32:
        copy_row(target, source, width)
    elif dtype == FLOAT16:
        for j in range(width):
            store_f16(target + 2 * j, load_f32(source + 4 * j))
    elif dtype == BFLOAT16:
        for j in range(width):
            bits = load_f32_bits(source + 4 * j)
            store_i16(target + 2 * j, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    else:
        step = scale_of(source, width)
        store_f32(scale, step)
        for j in range(width):
            # The scale of a row of subnormal numbers is itself rounded, so x / step may exceed STEPS.
            x = load_f32(source + 4 * j) / step if step > 0 else np.float32(0.0)
            x = min(max(x, np.float32(-STEPS)), np.float32(STEPS))
            store_i8(target + j, np.int64((x + ROUNDER) - ROUNDER))


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def store_rows(dtype, target, row_nbytes, scales, source, rows, width):
    """Store consecutive float32 rows as any type, row_nbytes each; `scales` are used only for scaled types."""
    for i in range(rows):
        store_typed(dtype, target + i * row_nbytes, scales + 4 * i, source + 4 * width * i, width)


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def load_rows(dtype, target, source, row_nbytes, scales, rows, width):
    """Read consecutive rows of any type as float32: copy_typed for each; arguments as of store_rows()."""
    for i in range(rows):
        copy_typed(dtype, target + 4 * width * i, source + i * row_nbytes, scales + 4 * i, width)
