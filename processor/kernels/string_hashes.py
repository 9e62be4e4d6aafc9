"""The 64-bit string hashes of TensorFlow's features, equal to the bit: a whole column in one call.

FARM    FarmHash's Fingerprint64 (Geoff Pike): StringToHashBucketFast, Keras's Hashing, SparseCross
MURMUR  MurmurHash64A with TensorFlow's seed: StringToHashBucket
SIP     SipHash-2-4 with a key of 128 bits (Aumasson, Bernstein): StringToHashBucketStrong, salted Hashing
cat     two fingerprints as one: SparseCross
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.hashing import load_1, load_4, load_8, rotate_left
from freshet_serving.processor.kernels.kernel import inlined, kernel

FARM, MURMUR, SIP = 0, 1, 2

U = np.uint64
K0, K1, K2 = U(0xC3A5C85C97CB3127), U(0xB492B66FBE98F273), U(0x9AE16A3B2F90404F)
MURMUR_MUL, MURMUR_SEED = U(0xC6A4A7935BD1E995), U(0xDECAFCAFFE)
SIP_0, SIP_1, SIP_2, SIP_3 = (
    U(int.from_bytes(word, "big")) for word in (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
)


@inlined
def _right(h, bits):
    return rotate_left(h, 64 - bits)


@inlined
def _shift_mix(h):
    return h ^ (h >> U(47))


@inlined
def _both(u, v, mul):
    a = _shift_mix((u ^ v) * mul)
    return _shift_mix((v ^ a) * mul) * mul


@inlined
def _weak(text, a, b):
    """Hash 32 bytes with two seeds."""
    last = load_8(text + 24)
    a += load_8(text)
    b = _right(b + a + last, 21)
    c = a
    a += load_8(text + 8) + load_8(text + 16)
    b += _right(a, 44)
    return a + last, b + c


@kernel(nb.uint64(nb.int64, nb.int64))
def farm(text, length):
    """Return Fingerprint64 of a string of `length` bytes at an address."""
    n = U(length)
    mul = K2 + n * U(2)
    end = text + length
    if length <= 16:
        if length >= 8:
            a, b = load_8(text) + K2, load_8(end - 8)
            return _both(_right(b, 37) * mul + a, (_right(a, 25) + b) * mul, mul)
        if length >= 4:
            return _both(n + (load_4(text) << U(3)), load_4(end - 4), mul)
        if length > 0:
            y = load_1(text) + (load_1(text + (length >> 1)) << U(8))
            z = n + (load_1(end - 1) << U(2))
            return _shift_mix((y * K2) ^ (z * K0)) * K2
        return K2
    if length <= 32:
        a, b = load_8(text) * K1, load_8(text + 8)
        c, d = load_8(end - 8) * mul, load_8(end - 16) * K2
        return _both(_right(a + b, 43) + _right(c, 30) + d, a + _right(b + K2, 18) + c, mul)
    if length <= 64:
        a, b = load_8(text) * K2, load_8(text + 8)
        c, d = load_8(end - 8) * mul, load_8(end - 16) * K2
        y = _right(a + b, 43) + _right(c, 30) + d
        z = _both(y, a + _right(b + K2, 18) + c, mul)
        e, f = load_8(text + 16) * mul, load_8(text + 24)
        g, h = (y + load_8(end - 32)) * mul, (z + load_8(end - 24)) * mul
        return _both(_right(e + f, 43) + _right(g, 30) + h, e + _right(f + a, 18) + g, mul)
    x = U(81)
    y = x * K1 + U(113)
    z = _shift_mix(y * K2 + U(113)) * K2
    v0, v1, w0, w1 = U(0), U(0), U(0), U(0)
    x = x * K2 + load_8(text)
    blocks = text + (length - 1) // 64 * 64
    while text != blocks:
        x = _right(x + y + v0 + load_8(text + 8), 37) * K1
        y = _right(y + v1 + load_8(text + 48), 42) * K1
        x ^= w1
        y += v0 + load_8(text + 40)
        z = _right(z + w0, 33) * K1
        v0, v1 = _weak(text, v1 * K1, x + w0)
        w0, w1 = _weak(text + 32, z + w1, y + load_8(text + 16))
        z, x = x, z
        text += 64
    mul = K1 + ((z & U(0xFF)) << U(1))
    text = end - 64
    w0 += (n - U(1)) & U(63)
    v0 += w0
    w0 += v0
    x = _right(x + y + v0 + load_8(text + 8), 37) * mul
    y = _right(y + v1 + load_8(text + 48), 42) * mul
    x ^= w1 * U(9)
    y += v0 * U(9) + load_8(text + 40)
    z = _right(z + w0, 33) * mul
    v0, v1 = _weak(text, v1 * mul, x + w0)
    w0, w1 = _weak(text + 32, z + w1, y + load_8(text + 16))
    z, x = x, z
    return _both(_both(v0, w0, mul) + _shift_mix(y) * K0 + z, _both(v1, w1, mul) + x, mul)


@kernel(nb.uint64(nb.int64, nb.int64))
def murmur(text, length):
    """Return MurmurHash64A of a string, with TensorFlow's seed."""
    h = MURMUR_SEED ^ (U(length) * MURMUR_MUL)
    whole = text + length // 8 * 8
    while text != whole:
        h = (h ^ (_shift_mix(load_8(text) * MURMUR_MUL) * MURMUR_MUL)) * MURMUR_MUL
        text += 8
    rest = length & 7
    if rest:
        for i in range(rest):
            h ^= load_1(text + i) << U(8 * i)
        h *= MURMUR_MUL
    return _shift_mix(_shift_mix(h) * MURMUR_MUL)


@kernel(nb.types.UniTuple(nb.uint64, 4)(nb.uint64, nb.uint64, nb.uint64, nb.uint64))
def _round(a, b, c, d):
    a += b
    b = rotate_left(b, 13) ^ a
    a = rotate_left(a, 32)
    c += d
    d = rotate_left(d, 16) ^ c
    a += d
    d = rotate_left(d, 21) ^ a
    c += b
    b = rotate_left(b, 17) ^ c
    return a, b, rotate_left(c, 32), d


@kernel(nb.uint64(nb.int64, nb.int64, nb.uint64, nb.uint64))
def sip(text, length, key_0, key_1):
    """Return SipHash-2-4 of a string; the key is in two halves."""
    a, b, c, d = key_0 ^ SIP_0, key_1 ^ SIP_1, key_0 ^ SIP_2, key_1 ^ SIP_3
    whole = text + length // 8 * 8
    last = U(length & 0xFF) << U(56)
    for i in range(length & 7):
        last |= load_1(whole + i) << U(8 * i)
    while text <= whole:
        word = load_8(text) if text != whole else last
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        text += 8
    c ^= U(0xFF)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@inlined
def cat_first(first):
    """Return the part of cat() that depends on the first fingerprint alone."""
    return first ^ MURMUR_MUL


@inlined
def cat_second(second):
    """Return the part of cat() that depends on the second fingerprint alone."""
    return _shift_mix(second * MURMUR_MUL) * MURMUR_MUL


@inlined
def cat_mixed(first, second):
    """Return cat() of what cat_first() and cat_second() returned."""
    return _shift_mix(_shift_mix((first ^ second) * MURMUR_MUL) * MURMUR_MUL)


@inlined
def cat(first, second):
    """Return the fingerprint of two fingerprints, uint64, in this order."""
    return cat_mixed(cat_first(first), cat_second(second))


@kernel(
    nb.void(
        nb.int64,
        nb.int64,
        nb.types.Array(nb.int64, 1, "A", readonly=True),
        nb.uint64,
        nb.uint64,
        nb.uint64[::1],
    )
)
def _column(how, data, offsets, key_0, key_1, hashes):
    for i in range(len(hashes)):
        text, length = data + offsets[i], offsets[i + 1] - offsets[i]
        if how == FARM:
            hashes[i] = farm(text, length)
        elif how == MURMUR:
            hashes[i] = murmur(text, length)
        else:
            hashes[i] = sip(text, length, key_0, key_1)


def fingerprints(strings: Strings, how: int = FARM, key: tuple[int, int] = (0, 0)) -> np.ndarray:
    """Return uint64 [n]: the hash of each string's bytes by FARM, MURMUR or SIP, whose key is in two halves."""
    hashes = np.empty(len(strings), np.uint64)
    _column(how, strings.data.ctypes.data, strings.offsets, U(key[0]), U(key[1]), hashes)
    return hashes
