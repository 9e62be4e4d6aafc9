"""Describe a version's subgraphs for `freshet inspect`: what they read and compute, and the work of each.

The work is that of the manifest's notes, counted when the version was compiled (compiler.building.parts). A
multiplication and an addition count as two FLOPs; moving data, and what depends on weights alone, as none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from freshet_serving.processor.package import (
    FEATURES,
    FLOPS,
    SCORE,
    USER,
    USER_STATE,
    GraphInput,
    Manifest,
    Subgraph,
    dense_sequences,
    role,
    shorter,
    shorter_lengths,
)
from freshet_serving.processor.package.subgraphs import subgraphs

MOST_FEATURES = 6
CANDIDATES = (1, 100, 256, 1000)
STATE_CANDIDATES, LITTLE = 256, 0.4
"""Candidates by which what a user's state saves is told, and the share of the work below which that is little."""


def subgraph_lines(manifest: Manifest) -> list[str]:
    """Return a line for each subgraph: inputs with symbols, dtypes and sources, and outputs."""
    return [_subgraph(name, graph) for name, graph in subgraphs(manifest).items()]


def work_lines(manifest: Manifest) -> list[str]:
    """Return lines on the FLOPs of each subgraph and the share of the user's part; [] if they were not counted."""
    counted = manifest.notes.get(FLOPS)
    # Tools may write anything into notes.
    if not isinstance(counted, dict) or not all(isinstance(n, int) for n in counted.values()):
        return []
    longest = max((s.max_length for s in dense_sequences(manifest.sequences)), default=0)
    lines = [_work(name, counted[name], longest) for name in subgraphs(manifest) if name in counted]
    return [
        *lines,
        *_shares(counted, [0, *shorter_lengths(manifest)]),
        *_state(manifest.notes.get(USER_STATE), counted, manifest.graphs.get(USER)),
    ]


def _work(name: str, flops: int, longest: int) -> str:
    """Return the line of one subgraph; `longest` is the most events of a history, 0 without histories."""
    part, length = role(name)
    if part != USER:
        return f"{name}: {flops:,} FLOPs a candidate"
    events = min(length or longest, longest)
    return f"{name}: {flops:,} FLOPs a request" + (f", {flops // events:,} an event of {events:,}" if events else "")


def _shares(counted: dict[str, int], lengths: Sequence[int]) -> Iterator[str]:
    for length in lengths:
        of_user, of_score = (counted.get(shorter(part, length) if length else part, 0) for part in (USER, SCORE))
        if not of_user:
            continue
        shares = ", ".join(f"{of_user / (of_user + n * of_score):.0%} of {n:,}" for n in CANDIDATES)
        which = f" with at most {length:,} events" if length else ""
        yield f"a request of n candidates{which}: {of_user:,} + {of_score:,} n FLOPs; the user's part is {shares}"


def _state(note: Any, counted: dict[str, int], user: Subgraph | None) -> Iterator[str]:
    """Yield the line on what memory for users can save (docs/extensions/user_state.md)."""
    if not isinstance(note, dict) or not all(isinstance(note.get(key), str) for key in ("class", "append", "why")):
        return
    of_user, of_score = counted.get(USER, 0), counted.get(SCORE, 0)
    if of_user and user is not None:
        numbers = sum(math.prod(output.dims[1:]) for output in user.outputs)
        share = of_user / (of_user + STATE_CANDIDATES * of_score)
        little = ", which is little" if share < LITTLE else ""
        yield (
            f"user state: {note['class']}, append {note['append']} ({note['why']}); a hit saves at most {share:.0%} of "
            f"the FLOPs of a request of {STATE_CANDIDATES} candidates{little}; its numbers take {4 * numbers:,} bytes, "
            "as float16 about half"
        )


def _subgraph(name: str, graph: Subgraph) -> str:
    computed = ", ".join(f"{t.name} {_shape(t.dims)} {t.dtype}" for t in graph.outputs)
    return f"{name}: {'; '.join(map(_input, graph.inputs))} -> {computed}"


def _input(spec: GraphInput) -> str:
    if spec.source != FEATURES:
        filler = f" from {spec.source}"
    else:
        more = len(spec.features) - MOST_FEATURES
        filler = " of " + ", ".join(spec.features[:MOST_FEATURES]) + (f" and {more} more" if more > 0 else "")
    return f"{spec.name} {_shape(spec.dims)} {spec.dtype}{filler}"


def _shape(dims: Sequence[object]) -> str:
    return f"[{', '.join(map(str, dims))}]"
