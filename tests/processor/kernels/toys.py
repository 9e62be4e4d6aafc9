"""Two kernels, one of which calls the other, for tests of where their code is kept.

A test writes this file anew under another name; `python toys.py` is never run.
"""

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import inlined, kernel

FACTOR = 2
TABLE = np.arange(4)


@inlined
def scaled(number):
    return number * FACTOR


@kernel(nb.int64(nb.int64))
def twice(number):
    return scaled(number)


@kernel(nb.int64(nb.int64[::1]), error_model="numpy")
def total(numbers):
    result = 0
    for number in numbers:
        result += twice(number)
    return result
