"""What every client program is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np


def read():
    """The probe: addresses, inputs as arrays, scores that are expected."""
    given = json.loads(Path(sys.argv[1]).read_text())
    tags = [tag.encode() for row in given["tags"] for tag in row]
    return SimpleNamespace(
        http=given["http"],
        grpc=given["grpc"],
        generation=given["generation"],
        shared_memory=given["shared_memory"],
        user=np.array(given["user"], np.int64),
        tags=given["tags"],
        tag_values=np.array(tags, np.object_),
        tag_splits=np.cumsum([0] + [len(row) for row in given["tags"]]),
        floats=np.array(given["floats"], np.float32),
        scores=np.array(given["scores"], np.float32),
    )


def check(probe, scores):
    np.testing.assert_allclose(np.ravel(scores), probe.scores, atol=1e-5)


class Refused(AssertionError):
    """A call that should have failed did not."""


def refusal(kind, call, *arguments, **options):
    """The error that a call raises."""
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise Refused(f"{call} was not refused")
