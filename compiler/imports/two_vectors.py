"""Find the two vectors of an imported model with two towers: of its user, and of its item.

A model has them if its only outputs are two of one width, one of which reads the user's inputs alone, as the import
names them, and the other the other inputs alone. Names are no evidence: without the user's inputs nothing is assumed,
and the report says what to name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from freshet_serving.compiler.imports.feeds import FeedSpec
from freshet_serving.compiler.imports.foreign_graph import INPUT, ForeignGraph, Ref


class TwoVectors(NamedTuple):
    """The outputs with the user's and the item's vector, and the inputs that the item's is made of."""

    user: str
    item: str
    inputs: frozenset[str]

    @property
    def line(self) -> str:
        made_of = ", ".join(sorted(self.inputs))
        return f"top items: {self.user!r} is the user's vector, and {self.item!r} that of an item, made of {made_of}"


def inputs_of(graph: ForeignGraph, outputs: Mapping[str, Ref], inputs: Sequence[FeedSpec]) -> dict[str, frozenset[str]]:
    names = {node: fed.name for fed in inputs for node in fed.nodes}
    return {
        output: frozenset(names[node.name] for node in graph.ancestors([ref]) if node.op == INPUT)
        for output, ref in outputs.items()
    }


def two_vectors(read: Mapping[str, frozenset[str]], user: Collection[str]) -> TwoVectors | None:
    """Return the vectors of a model; None if it has no two, or nobody says which inputs are the user's."""
    if len(read) != 2 or not all(read.values()):
        return None
    for of_user, of_item in (list(read), list(read)[::-1]):
        if read[of_user] <= set(user) and read[of_item].isdisjoint(user):
            return TwoVectors(of_user, of_item, read[of_item])
    return None


def hint(read: Mapping[str, frozenset[str]]) -> str:
    """Return what to name at an import for a model that may have two vectors; "" for any other one."""
    if len(read) != 2 or not all(read.values()):
        return ""
    first, second = read.values()
    if first & second:
        return ""
    names = " and ".join(repr(name) for name in read)
    return f"top items: {names} may be vectors of a user and an item; name the user's inputs by --user to rank items"
