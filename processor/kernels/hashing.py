"""Hash strings to ids, and ids to their initial rows; training and serving get the same bits.

Strings of up to 240 bytes are hashed a whole column in one call, without the GIL. The algorithm is XXH3, 64 bits with a
seed, of xxHash 0.8 (Yann Collet), checked against the xxhash library for every length. Longer strings are rare among
features and are left to the library: the kernel returns their positions.
"""

# mypy: ignore-errors

import numba as nb
import numpy as np
import xxhash
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.kernel import inlined, kernel

LONGEST = 240

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364ea"
    "c5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b"
    "16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRET = np.frombuffer(SECRET, np.uint8)

U = np.uint64
P64_1, P64_2, P64_3 = U(0x9E3779B185EBCA87), U(0xC2B2AE3D27D4EB4F), U(0x165667B19E3779F9)
MX_1, MX_2 = U(0x165667919E3779F9), U(0x9FB21C651E98DF25)


def _word(at, nbytes=8):
    return U(int.from_bytes(SECRET[at : at + nbytes], "little"))


EMPTY_FLIP = _word(56) ^ _word(64)
FLIP_1_TO_3 = _word(0, 4) ^ _word(4, 4)
FLIP_4_TO_8 = _word(8) ^ _word(16)
FLIP_LOW_9_TO_16 = _word(24) ^ _word(32)
FLIP_HIGH_9_TO_16 = _word(40) ^ _word(48)


def _loader(nbytes):
    """Return an intrinsic that loads nbytes at an unaligned address as a little-endian uint64."""

    @intrinsic
    def load(typingctx, address):
        def codegen(context, builder, signature, args):
            kind = ir.IntType(8 * nbytes)
            value = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return value if nbytes == 8 else builder.zext(value, ir.IntType(64))

        return types.uint64(types.int64), codegen

    return load


load_1, load_4, load_8 = _loader(1), _loader(4), _loader(8)


@intrinsic
def _fold(typingctx, a, b):
    """Return the low half xor the high half of the 128-bit product."""

    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), high)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def high_product(typingctx, a, b):
    """Return the high half of the 128-bit product of two uint64."""

    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def _swap(typingctx, value):
    """Return a uint64 with its bytes reversed."""

    def codegen(context, builder, signature, args):
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


@inlined
def _avalanche(h):
    h = (h ^ (h >> U(37))) * MX_1
    return h ^ (h >> U(32))


@inlined
def _avalanche_64(h):
    h = (h ^ (h >> U(33))) * P64_2
    h = (h ^ (h >> U(29))) * P64_3
    return h ^ (h >> U(32))


@inlined
def rotate_left(h, bits):
    return (h << U(bits)) | (h >> U(64 - bits))


@inlined
def _mix(text, secret, seed):
    """Mix 16 bytes of text with 16 of the secret."""
    low, high = load_8(text), load_8(text + 8)
    return _fold(low ^ (load_8(secret) + seed), high ^ (load_8(secret + 8) - seed))


@kernel(nb.uint64(nb.int64, nb.int64, nb.int64, nb.uint64))
def xxh3(text, length, secret, seed):
    """Return the hash of a string of at most LONGEST bytes; `secret` is the address of SECRET."""
    n = U(length)
    if length == 0:
        return _avalanche_64(seed ^ EMPTY_FLIP)
    if length <= 3:
        first, middle, last = load_1(text), load_1(text + (length >> 1)), load_1(text + length - 1)
        combined = (first << U(16)) | (middle << U(24)) | last | (n << U(8))
        return _avalanche_64(combined ^ (FLIP_1_TO_3 + seed))
    if length <= 8:
        keyed = seed ^ ((_swap(seed & U(0xFFFFFFFF)) >> U(32)) << U(32))
        both = load_4(text + length - 4) + (load_4(text) << U(32))
        h = both ^ (FLIP_4_TO_8 - keyed)
        h = (h ^ rotate_left(h, 49) ^ rotate_left(h, 24)) * MX_2
        h = (h ^ ((h >> U(35)) + n)) * MX_2
        return h ^ (h >> U(28))
    if length <= 16:
        low = load_8(text) ^ (FLIP_LOW_9_TO_16 + seed)
        high = load_8(text + length - 8) ^ (FLIP_HIGH_9_TO_16 - seed)
        return _avalanche(n + _swap(low) + high + _fold(low, high))
    h = n * P64_1
    if length <= 128:
        for i in range((length - 1) // 32, -1, -1):
            h += _mix(text + 16 * i, secret + 32 * i, seed)
            h += _mix(text + length - 16 * (i + 1), secret + 32 * i + 16, seed)
        return _avalanche(h)
    for i in range(8):
        h += _mix(text + 16 * i, secret + 16 * i, seed)
    h = _avalanche(h)
    for i in range(8, length // 16):
        h += _mix(text + 16 * i, secret + 16 * (i - 8) + 3, seed)
    return _avalanche(h + _mix(text + length - 16, secret + 119, seed))


@kernel(
    nb.int64(
        nb.int64,
        nb.types.Array(nb.int64, 1, "A", readonly=True),
        nb.int64,
        nb.uint64,
        nb.uint64[::1],
        nb.int64[::1],
    )
)
def hash_column(data, offsets, secret, seed, hashes, longer):
    """Write the hash of each string of a column (columns.Strings); return how many were too long for this kernel.

    `data` and `secret` are addresses; `hashes` are uint64 [n], `longer` int64 [n], the positions that are left out.
    """
    left = 0
    for i in range(len(hashes)):
        length = offsets[i + 1] - offsets[i]
        if length > LONGEST:
            longer[left] = i
            left += 1
        else:
            hashes[i] = xxh3(data + offsets[i], length, secret, seed)
    return left


SECRET_ADDRESS = _SECRET.ctypes.data


def hash_strings(strings: Strings, seed: int) -> np.ndarray:
    """Return int64 [n]: xxh3_64 of each string's UTF-8 bytes, as two's complement."""
    hashes, longer = np.empty(len(strings), np.uint64), np.empty(len(strings), np.int64)
    data, offsets = strings.data, strings.offsets
    left = hash_column(data.ctypes.data, offsets, SECRET_ADDRESS, np.uint64(seed), hashes, longer)
    for i in longer[:left].tolist():
        hashes[i] = xxhash.xxh3_64_intdigest(data[offsets[i] : offsets[i + 1]].tobytes(), seed)
    return hashes.view(np.int64)


@inlined
def _split_mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel(nb.void(nb.types.Array(nb.int64, 1, "A", readonly=True), nb.uint64, nb.float32, nb.float32[:, :]))
def init_rows(keys, seed, limit, rows):
    """Fill rows, float32 [n, width], with values in [-limit, limit) that depend on seed, key and column alone."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    for i in range(len(keys)):
        state = _split_mix(np.uint64(keys[i]) + seed * golden)
        for j in range(rows.shape[1]):
            state += golden
            unit = np.float32(_split_mix(state) >> np.uint64(40)) * np.float32(2.0**-24)
            rows[i, j] = (unit * np.float32(2.0) - np.float32(1.0)) * limit
