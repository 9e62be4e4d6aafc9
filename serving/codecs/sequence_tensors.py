"""Name the tensors that tell a sequence's lists apart: one for all of its columns, or one for each.

A list input X travels as X [total] and X.row_splits [rows + 1], which NVIDIA Merlin's clients call X__values and
X__offsets. The columns of a sequence S may instead share

    S.row_splits   int64 [rows + 1]: every column is [total]
    S.lengths      int64 [rows]: every column is padded to [rows, L], and the first values of a row count

The three forms do not mix within a sequence. Codecs read them into lists at once, so nothing behind them differs.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import NamedTuple

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.sequences import LENGTHS as LENGTHS
from freshet_serving.processor.features.sequences import ROW_SPLITS as ROW_SPLITS
from freshet_serving.processor.package import Input, Manifest


class ListTensors(NamedTuple):
    """The tensors beside a model's list inputs.

    Attributes:
        own: An input's own row_splits, by the input's name.
        sequence: The sequence that an input belongs to, by the input's name.
        specs: All of these tensors, by their names.
        columns: The inputs of each sequence, by its name.
        others: Other names of tensors, each with ours: Merlin's for list inputs, and those of the model's own
            signature.
    """

    own: dict[str, str]
    sequence: dict[str, str]
    specs: dict[str, Input]
    columns: dict[str, list[str]]
    others: dict[str, str]

    def beside(self, name: str, sent: Container[str]) -> str:
        """Return which of the `sent` tensors tells the lists of an input apart; raise BadInput if several do."""
        siblings = [n for n in self.choices(name) if n in sent]
        if len(siblings) > 1:
            raise BadInput(f"inputs[{name}]: expected one of {' and '.join(siblings)}, got both")
        return siblings[0] if siblings else self.own[name]

    def choices(self, name: str) -> list[str]:
        """Return the tensors of which a request sends one with this input."""
        shared = self.sequence.get(name)
        return [self.own[name]] + ([shared + ROW_SPLITS, shared + LENGTHS] if shared else [])

    def padded(self, name: str, sent: Container[str]) -> bool:
        """Report whether an input is sent as a matrix beside its sequence's lengths."""
        shared = self.sequence.get(name)
        return shared is not None and shared + LENGTHS in sent

    def check_shared(self, sent: Container[str]) -> None:
        """Raise BadInput if a request has a sequence's row_splits or lengths, and none of its columns."""
        for sequence, columns in self.columns.items():
            for name in (sequence + ROW_SPLITS, sequence + LENGTHS):
                if name in sent and not any(column in sent for column in columns):
                    raise BadInput(f"inputs: {name} is sent without {' or '.join(columns)}")


@lru_cache(maxsize=64)
def _tensors(
    lists: tuple[str, ...], sequences: tuple[tuple[str, tuple[str, ...]], ...], own_names: tuple[tuple[str, str], ...]
) -> ListTensors:
    splits = {name: name + ROW_SPLITS for name in lists}
    columns = {name: list(inputs) for name, inputs in sequences}
    names = [*splits.values(), *(name + end for name in columns for end in (ROW_SPLITS, LENGTHS))]
    shared = {column: name for name, inputs in columns.items() for column in inputs}
    merlin = {name + "__values": name for name in lists} | {name + "__offsets": name + ROW_SPLITS for name in lists}
    signed = dict(own_names) | {theirs + ROW_SPLITS: name + ROW_SPLITS for theirs, name in own_names if name in splits}
    return ListTensors(splits, shared, {name: Input(name, "int64") for name in names}, columns, merlin | signed)


def list_tensors(manifest: Manifest) -> ListTensors:
    lists = tuple([i.name for i in manifest.inputs if i.ragged])
    sequences = tuple([(s.name, tuple(s.inputs)) for s in manifest.sequences])
    return _tensors(lists, sequences, tuple(manifest.own_names.items()))
