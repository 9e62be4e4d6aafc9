"""Stores that are ordered before every later load, of this thread and as other threads and processes see it.

A reader announces what it is about to read and then looks whether that is still current; a writer replaces what is
current and then looks who has announced what. Both need their store to be visible before their load: plain stores and
loads may pass each other even on x86, an atomic exchange may not be passed.
"""

# mypy: ignore-errors

import numba as nb
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def _exchange(typingctx, address, value):
    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("xchg", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@nb.njit(nb.int64(nb.int64, nb.int64), cache=True, nogil=True)
def exchange(address, value):
    """Stores an int64 at an address that the caller keeps alive, as a full barrier; returns what was there."""
    return _exchange(address, value)
