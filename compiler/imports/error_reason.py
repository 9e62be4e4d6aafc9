"""Say in one line why a model is refused: by another library, without names of its exceptions, its code or files."""

from __future__ import annotations

import re

from freshet_serving.processor.errors import BadInput

MAX_CHARACTERS = 200
# TensorFlow's messages about values name a node after them, and a stack.
NODE = re.compile(r"([^\n]*?)\s*\[\[\{\{node")
# In order: templates, codes and source lines of ONNX Runtime, names of exceptions, paths.
NOISE = (
    r"\[with .*\] ",
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"\S*/\S+\.(?:cc|h|hpp):\d+ [^()]*\([^()]*\)(?: const)? ?",
    r"^(?:Load model from .*?failed:|Exception during initialization:)\s*",
    r"^Exception encountered when calling [^.]*\.\s*",
    r"\b\w+(?:Error|Exception): ",
    r"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*",
)
UNSAID = "it gives no reason"


def reason_of(error: BaseException) -> str:
    text = str(getattr(error, "message", "") or error)
    located = NODE.search(text)
    text = " ".join((located[1] if located else text).split())
    for noise in NOISE:
        text = re.sub(noise, "", text)
    return text[:MAX_CHARACTERS].strip(" :") or UNSAID


def size_by_value(op: str, name: str, refused: str = "a size", advice: str = "") -> BadInput:
    """Return the error of an operation of which `refused`, a size, follows from numbers of a request."""
    return BadInput(
        f"graph: {op[:64]} {name[:64]!r}: expected {refused} that follows from shapes, got one that follows from "
        f"numbers of the request, which could ask for any{advice}"
    )
