"""Fills an input that a request leaves out with a constant."""

from dataclasses import asdict, dataclass

import numpy as np

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import left_out
from freshet_serving.processor.features.late_values import LateFill
from freshet_serving.processor.kernels.pool import SENT
from freshet_serving.processor.package import InputFiller
from freshet_serving.processor.package.json_dataclasses import build
from freshet_serving.processor.ports import Section


@dataclass(frozen=True)
class Constant:
    """An input, and the value of all rows that leave it out."""

    input: str
    value: float


class ConstantInput:
    """The input of one plan."""

    def __init__(self, constant, sources):
        """Find the input among the numbered sources of the plan."""
        self.inputs = frozenset([constant.input])
        self._source = sources[constant.input, 0]
        self._value = np.array([constant.value], np.float32)

    def feeds(self, sources):
        """Report whether the input is among these sources."""
        return self._source in sources.tolist()

    def fill(self, view, inputs):
        """Replace what requests leave out by the address of the one value."""
        inputs[left_out(inputs)[:, self._source], self._source] = self._value.ctypes.data, 1, 1, 0, SENT
        return LateFill((self._value,))


def _check(constant, manifest):
    if constant.input not in {i.name for i in manifest.inputs if i.dtype == "float32" and not i.columns}:
        raise BadInput(f"manifest.toy_late.input: expected one float32 a row, got {constant.input[:64]!r}")


SECTION = Section(
    parse=lambda raw: build(Constant, raw, "manifest.toy_late"),
    dump=asdict,
    check=_check,
    fillers=lambda constant: {constant.input: InputFiller("constants", "toy", ())},
)
