"""The engine as the corpus uses it: opened on a folder, followed, asked. Scoring imports nothing else of ours.

When our API changes, this module changes with it, in the same commit; entries and scoring stay as they are. Pinned
here is all that may choose between two ways to compute one score: sessions, threads, the guard, the user's part.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from freshet_serving import PredictRequest, Processor, ProcessorConfig, Ragged, Strings
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.running.graph_run import GraphRun
from tests.corpus.entry import Scores

WAYS = {"parts": True, "whole": False}


def opened(repository: Path, keys: Sequence[Path] = (), signing_key: Path | str = "") -> Processor:
    """A processor over a repository in which `keys` sign all; what it writes itself is signed by `signing_key`."""
    keyring = Keyring.of(signing_key, keys)
    return Processor.initialize(
        ProcessorConfig(str(repository), sessions=1, threads_per_session=1, delta_guard="off", keyring=keyring)
    )


def follow(processor: Processor) -> list[str]:
    """Take what has arrived in the repository; return what was said of it."""
    return processor.poll()


def ask(processor: Processor, model: str, inputs: dict[str, dict[str, Any]], way: str = "") -> tuple[str, Scores]:
    """(generation, scores) of a request of tests.corpus.entry."""
    columns = {name: column(document) for name, document in inputs.items()}
    with _by(way):
        reply = processor.process(PredictRequest(model, columns))
    return str(reply.generation), dict(reply.outputs)


def computes(processor: Processor, model: str) -> str:
    """What computes the dense graph, such as "onnxruntime float32"; of several, all."""
    return ", ".join(sorted(set(processor.predictor.replica(model).computes.values())))


def column(document: dict[str, Any]) -> Any:
    values, shape = document["values"], document["shape"]
    array: Any
    if document["dtype"] == "string":
        array = Strings.of(values)
    else:
        array = np.array([np.nan if v is None else v for v in values], document["dtype"]).reshape(shape)
    splits = document.get("row_splits")
    return array if splits is None else Ragged(array, np.array(splits, np.int64))


def root() -> Path:
    """The folder that the engine was imported from."""
    return Path(inspect.getfile(Processor)).resolve().parents[1]


@contextmanager
def _by(way: str) -> Iterator[None]:
    """Pin the way of a divided graph: a server takes the one that is faster where it runs, so scores would vary."""
    if not way:
        yield
        return
    as_at_load = lambda graphs, bound, rows, explore: graphs.divided(bound, rows)  # noqa: E731
    with (
        patch.object(GraphRun, "pays", lambda graphs, parts, rows: WAYS[way], create=True),
        # Older engines have other such methods.
        patch.object(GraphRun, "worth_dividing", lambda graphs, rows: WAYS[way], create=True),
        patch.object(GraphRun, "divided_now", as_at_load, create=True),
    ):
        yield
