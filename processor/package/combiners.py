"""Combiners: how the rows of a list become the columns of a feature. All that depends on which one is here.

A combiner sums the rows of a list in their order and divides the sum by a power of their number; "none" leaves rows one
after another. A long list of a divided request is summed in pieces (features.plan), so a combiner says as which one its
pieces are combined; one without does not take lists apart. The gradient of a row is the feature's, divided as the sum
was (models.embedding.kernels).

A further combiner has a row here; one that is no sum, such as a maximum, also changes kernels.list_sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Combiner(NamedTuple):
    """One combiner; `code` is its number in the plans of kernels.

    Attributes:
        merge: The combiner of the pieces of a long list; "" if a list is never taken apart.
        power: The sum is divided by the number of values to this power: 0, 1 or 0.5.
    """

    name: str
    code: int
    merge: str
    power: float

    def divisor(self, values: int) -> np.float32:
        """Return what the sum of a list of so many values is divided by."""
        count = np.float32(values)
        return np.float32(1) if not self.power else np.sqrt(count) if self.power == 0.5 else count


COMBINERS = {
    combiner.name: combiner
    for combiner in (
        Combiner("sum", 0, "sum", 0),
        Combiner("mean", 1, "sum", 1),
        Combiner("sqrtn", 2, "sum", 0.5),
        Combiner("none", 3, "", 0),
    )
}
COMBINER_OF_CODE = {combiner.code: combiner for combiner in COMBINERS.values()}
NOT_COMBINED = COMBINERS["none"].code
DIVIDED_SUMS = tuple(combiner.code for combiner in COMBINERS.values() if combiner.power)
"""Codes of combiners that divide the sum, for kernels."""
ROOT_DIVIDED_SUMS = tuple(combiner.code for combiner in COMBINERS.values() if combiner.power == 0.5)
"""Codes of those that divide it by a square root."""
