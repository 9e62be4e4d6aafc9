"""Raw addresses inside Numba kernels: one call can then walk any number of tables, features and requests.

Contract: an address comes from a live numpy buffer that the caller keeps referenced for the length of the call, and
every offset has been bounds-checked before. Threads publish to each other through store_release / load_acquire.

exchange() is a store that is ordered before every later load, of this thread and as other threads and processes see it.

A reader announces what it is about to read and then checks that it is still current; a writer replaces what is
current and then checks the readers' announcements. Both need their store to be visible before their load: plain stores
and loads may be reordered even on x86, but nothing may be reordered before an atomic exchange.
"""

# mypy: ignore-errors

import numba as nb
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freshet_serving.processor.kernels.kernel import kernel

FLOATS_8 = ir.VectorType(ir.FloatType(), 8)


@intrinsic
def load_i64(typingctx, address):
    """Load the int64 at an address."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer)

    return types.int64(types.int64), codegen


@intrinsic
def load_i64_anywhere(typingctx, address):
    """Load the int64 at an address that need not be aligned, as in a request's body."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.int64(types.int64), codegen


@intrinsic
def load_f32_anywhere(typingctx, address):
    """Load the float32 at an address that need not be aligned."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        return builder.load(pointer, align=1)

    return types.float32(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """Load the int64 at an address; stores made before its store_release are visible afterwards."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def add_relaxed(typingctx, address, value):
    """Add to the int64 at an address that other threads add to as well; returns the old value."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_u8(typingctx, address):
    """Load the byte at an address."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Store an int64 after every earlier store of this thread."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def store_i64(typingctx, address, value):
    """Store an int64 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def load_f32(typingctx, address):
    """Load the float32 at an address."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.FloatType().as_pointer())
        return builder.load(pointer)

    return types.float32(types.int64), codegen


@intrinsic
def load_f64(typingctx, address):
    """Load the float64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), codegen


@intrinsic
def store_f64(typingctx, address, value):
    """Store a float64 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.DoubleType().as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Prefetch the cache line at an address; any address is allowed."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, int32, int32, int32])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(int32, n) for n in (0, 3, 1))
        builder.call(call, [builder.inttoptr(args[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def load_f32_bits(typingctx, address):
    """Load the float32 at an address, as the int64 of its bits."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        return builder.zext(builder.load(pointer, align=4), ir.IntType(64))

    return types.int64(types.int64), codegen


def _int_store(bits):
    """Return an intrinsic that stores the low bits of an int64."""

    @intrinsic
    def store(typingctx, address, value):
        def codegen(context, builder, signature, args):
            kind = ir.IntType(bits)
            builder.store(builder.trunc(args[1], kind), builder.inttoptr(args[0], kind.as_pointer()), align=bits // 8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


store_i8, store_i16, store_i32 = _int_store(8), _int_store(16), _int_store(32)


@intrinsic
def copy_bytes(typingctx, target, source, nbytes):
    """Copy bytes between addresses that do not overlap, of any alignment."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(a, pointer) for a in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_f32x8(typingctx, target, source):
    """Copy 8 float32, unaligned."""

    def codegen(context, builder, signature, args):
        target, source = (builder.inttoptr(a, FLOATS_8.as_pointer()) for a in args)
        builder.store(builder.load(source, align=4), target, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def store_f32(typingctx, address, value):
    """Store a float32 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.FloatType().as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def _exchange(typingctx, address, value):
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("xchg", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@kernel(nb.int64(nb.int64, nb.int64))
def exchange(address, value):
    """Store an int64 at an aligned address that the caller keeps alive, as a full barrier; return the old value."""
    return _exchange(address, value)
