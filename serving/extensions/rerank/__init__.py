"""The route that clients of rerankers know: a query and documents in, the documents in order out.

dialect  reads such a request as a user and candidates, and orders them by their scores
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _rerank() -> tuple[Callable[..., Any], ...]:
    from freshet_serving.serving.extensions.rerank.dialect import decode, encode, model_of

    return decode, encode, model_of


REQUIRES = ()
EXTENSION = ServerExtension(dialects={"rerank": _rerank})
