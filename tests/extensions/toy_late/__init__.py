"""A toy: a late value that is a constant, {"toy_late": {"input": "f3", "value": 2.5}} in a manifest.

constant  fills the input
"""

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _section():
    from freshet_serving.processor.extensions.toy_late.constant import SECTION

    return SECTION


def _late(value, sources):
    from freshet_serving.processor.extensions.toy_late.constant import ConstantInput

    return ConstantInput(value, sources)


REQUIRES = ()
EXTENSION = Extension(sections={"toy_late": _section}, late_values={"toy_late": _late})
