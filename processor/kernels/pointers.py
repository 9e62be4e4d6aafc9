"""Raw addresses inside Numba kernels: one call can then walk any number of tables, features and requests.

Contract: an address comes from a live numpy buffer that the caller keeps referenced for the length of the call, and
every offset has been bounded before. Publication between threads goes through store_release / load_acquire.
"""

# mypy: ignore-errors

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def load_i64(typingctx, address):
    """The int64 at an address."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer)

    return types.int64(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """The int64 at an address; what was stored before its store_release is visible after."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Stores an int64 after every earlier store of this thread."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def store_i64(typingctx, address, value):
    """Stores an int64 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def load_f32(typingctx, address):
    """The float32 at an address."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        return builder.load(pointer)

    return types.float32(types.int64), codegen
