"""A toy: a judge that holds deltas of more than a few rows, and every third version.

few_rows  judges by numbers
"""

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _few_rows(model):
    from freshet_serving.processor.extensions.toy_judge.few_rows import FewRows

    return FewRows()


REQUIRES = ()
EXTENSION = Extension(judges={"toy_judge": _few_rows})
