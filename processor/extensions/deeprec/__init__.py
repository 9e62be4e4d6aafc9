"""DeepRec's predict messages, as clients of PAI-EAS send them, and the C interface of its Processor.

codec             converts PredictRequest and PredictResponse to columns and back
answering         answers the bytes of a PredictRequest
capi              the C interface: a shared library with Python and this engine inside
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.ports import Extension

if TYPE_CHECKING:
    from freshet_serving.processor.engine import Processor

__all__ = ["codec"]


def _answer(processor: Processor, request: bytes, model: str | None) -> bytes:
    # Slow to import, and needed only for requests as bytes.
    from freshet_serving.processor.extensions.deeprec.answering import answer

    return answer(processor, request, model)


def _build_library() -> int:
    from freshet_serving.processor.extensions.deeprec.capi.library import main

    return main()


REQUIRES = ()
EXTENSION = Extension(messages=_answer, interface_builder=_build_library)
