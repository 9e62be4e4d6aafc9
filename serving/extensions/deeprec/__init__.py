"""DeepRec's messages over HTTP.

dialect  decodes a predict request in these messages, and encodes its reply
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _processor() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from freshet_serving.serving.extensions.deeprec.dialect import decode, encode

    return decode, encode


REQUIRES = ("deeprec",)
EXTENSION = ServerExtension(dialects={"processor": _processor})
