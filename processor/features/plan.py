"""Evaluate a model's sparse graph: a request's named inputs in, the dense graph's input matrix out.

A SparsePlan is made once from the manifest. bind_inputs() turns a request into addresses; fill() runs the fused kernel
over the bound requests of a batch, and trusts what was bound.

A large request is divided into chunks of rows (processor.sessions.split_request), and what its rows share is looked up
in steps of bounded size before. A list is taken apart only where its combiner says how pieces are combined
(package.combiners), in order, so the sum is equal to the bit.

A float that is infinite, or becomes so when scaled, is refused, because a network's output for it is meaningless; NaN
is a missing value. fill() raises NonFiniteInput after writing all rows; non_finite_error() then finds the place.
Outputs of a stage are not checked for this.

Modules for entities, sequences, transforms and stages are loaded with the first version that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_float
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import first_of
from freshet_serving.processor.features.binding import OptionalParts, RequestBinder
from freshet_serving.processor.features.bound_request import (
    NOTHING,
    BatchView,
    BoundRequest,
    NonFiniteInput,
    address,
    inputs_of,
    left_out,
    non_finite_input,
    read_word,
)
from freshet_serving.processor.features.input_reader import bound_input
from freshet_serving.processor.features.late_values import LateValues, fill_left_out, late_inputs
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.sources import Sources, lookup_plan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import (
    COMBINER_OF_CODE,
    COMBINERS,
    Manifest,
    SequenceEntry,
    StageGrowth,
    dense_sequences,
)

if TYPE_CHECKING:
    from freshet_serving.processor.features.entity_records import EntityRecords
    from freshet_serving.processor.features.evaluation import Transforms
    from freshet_serving.processor.features.sequences import SequenceColumns
    from freshet_serving.processor.features.stage import Limit, Stage
    from freshet_serving.processor.features.stage_rows import StageRows
    from freshet_serving.processor.features.stage_runs import StageRuns


class Pooling(NamedTuple):
    """Some features of a plan and the matrix columns they fill; `late` fills some of their inputs with each batch.

    The plan is int64 [F, PLAN_FIELDS] and the scaling float32 [F, SCALING_FIELDS] (kernels.pool).
    """

    plan: NDArray[np.int64]
    scaling: NDArray[np.float32]
    late: Sequence[LateValues] = ()

    def fill(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Write the view's rows of these features to float32 [rows, width]; other features' columns are unchanged.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
            FreshetError: A stage refuses a request, or was not done in time.
        """
        inputs, filled = view.inputs(), None
        if self.late:
            filled = fill_left_out(self.late, view, inputs)
        if pool.run(view.tables, self.plan, self.scaling, inputs, view.spans, view.epoch, out, view.counts):
            raise NonFiniteInput("inputs: expected numbers that are finite after scaling")
        if filled is not None and filled.refusal is not None:
            raise filled.refusal


class PoolingStep(NamedTuple):
    """Some features of one row, or some ids of one feature's list; `columns` are divided once they are filled."""

    pooling: Pooling
    bound: BoundRequest
    columns: slice = slice(0, 0)
    divisor: np.float32 = np.float32(1)

    def fill(self, tables: NDArray[np.int64], epoch: int, out: NDArray[np.float32], counts: NDArray[np.int64]) -> None:
        """Fill this step's columns of a row, float32 [1, width], in which earlier steps have written; see BatchView."""
        self.pooling.fill(BatchView(tables, epoch, [self.bound], np.array([[0, 1]], np.int64), counts), out)
        if self.divisor != 1:
            out[0, self.columns] /= self.divisor


class RowInvariants(NamedTuple):
    """The features of a request that are the same in all of its rows, as steps to run one after another.

    `varying` are the others, in the columns that SparsePlan.fill() writes them to.
    """

    ids: int
    parts: Sequence[PoolingStep]
    varying: Pooling


class SparsePlan:
    """The sparse graph of one model as a plan: what to read, look up and pool, in which columns of the dense input.

    Attributes:
        plan: The features' plan (kernels.pool), and `scaling` their scaling.
        lookups: `plan`, followed by the columns of sequences.
        sequences: The sequences that are inputs of the dense graph, by name.
        late: What fills sources with each batch: entities, a stage that reads rows, extensions.
    """

    def __init__(self, manifest: Manifest, stage: Stage | None = None, growth: StageGrowth | None = None) -> None:
        """Make the plan, with the loaded stage of a manifest that names one; without a growth, one is assumed."""
        self.width = manifest.width
        self._sources = sources = Sources.of(manifest, stage is not None)
        self.lookups, self._scaling = lookup_plan(manifest, sources)
        count = len(manifest.features)
        self.plan, self.scaling = self.lookups[:count], self._scaling[:count]
        self._features = {f.name: row for row, f in enumerate(manifest.lookups)}
        self.sequences = {s.name: s for s in dense_sequences(manifest.sequences)}
        first_columns = self.lookups[[self._features[s.columns[0].name] for s in self.sequences.values()]]
        self._histories: list[tuple[int, int]] = first_columns[:, [pool.SOURCE, pool.CODES]].tolist()
        self.stage = None if stage is None else _stage_runs(manifest, stage, growth)
        self.entities = _entities(manifest, sources)
        stage_rows = None
        if self.stage is not None and manifest.stage_lookups:
            stage_rows = _stage_rows(manifest, self.stage, sources, self.lookups)
        late_columns = late_inputs(manifest, sources.numbers)
        self.late: list[LateValues] = [*self.entities, *([stage_rows] if stage_rows else []), *late_columns]
        self._whole = Pooling(self.plan, self.scaling, self.late)
        late_names = frozenset(name for late in late_columns for name in late.inputs)
        strides = stage_rows.strides if stage_rows else None
        parts = OptionalParts(self.stage, strides, _transforms(manifest), _events(manifest), self.entities, late_names)
        self._binder = RequestBinder(manifest, sources, parts)

    def bind_inputs(
        self, inputs: Mapping[str, Column], limits: RequestLimits | None = None, limit: Limit | None = None
    ) -> BoundRequest:
        """Check names, dtypes, shapes and row counts of a request, and turn it into addresses for the kernel.

        Inputs of one row are broadcast to the rows of the others. Inputs that are not a request have no limits.

        Raises:
            BadInput: An input is wrong; the message names it, with what was expected and received.
            TooLarge: The request is beyond its limits.
            EndedRun: A stage was not done within `limit`.
        """
        return self._binder.bind(inputs, limits, limit)

    def aligned(self, inputs: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return a request's inputs as they are bound: each sequence as lists of one length, cut to its max_length."""
        return self._binder.aligned(inputs)

    def fill(self, view: BatchView, out: NDArray[np.float32]) -> None:
        """Write the view's rows, one request after another, into float32 [rows, width]; errors as of Pooling.fill()."""
        try:
            self._whole.fill(view, out)
        except NonFiniteInput as error:
            raise next(filter(None, map(self.non_finite_error, view.bound)), error) from None

    def filled(self, tables: NDArray[np.int64], epoch: int, bound: BoundRequest) -> BoundRequest:
        """Return a request with the values of its left-out sources, as of an epoch; FreshetError if the stage fails."""
        view = BatchView.of(tables, epoch, bound)
        inputs = view.inputs()
        filled, refusal = fill_left_out(self.late, view, inputs)
        if refusal is not None:
            raise refusal
        if not filled:
            return bound
        specs = {number: self._sources.specs[name] for (name, _), number in self._sources.numbers.items()}
        # Sources that no feature reads stay left out.
        keep = [
            NOTHING if words[pool.FILLED_BY] != pool.SENT else bound_input(specs[number], words)
            for number, words in enumerate(inputs[0].tolist())
        ]
        return BoundRequest(bound.rows, bound.ids, inputs.tobytes(), [*keep, bound, filled], bound.user_split)

    def non_finite_error(self, bound: BoundRequest) -> NonFiniteInput | None:
        """Return the error of a request with a float that is infinite or becomes so when scaled; else None."""
        inputs = self._sent(bound)
        feature, row, column = pool.find_non_finite(self.lookups, self._scaling, inputs)
        if feature < 0:
            return None
        number = self.lookups[feature, pool.SOURCE]
        name = first_of(name for (name, _), n in self._sources.numbers.items() if n == number)
        values, _, stride, splits, _ = inputs[number].tolist()
        first = int(read_word(splits + 8 * row).value) if splits else row * stride
        return non_finite_input(name, c_float.from_address(values + 4 * (first + column)).value, row, column)

    def largest(self, bound: BoundRequest) -> float:
        """Return the magnitude of a request's largest float, after scaling if it is scaled; 0 without floats."""
        return float(pool.largest(self.lookups, self._scaling, self._sent(bound)))

    def row_invariants(self, bound: BoundRequest, max_ids: int) -> RowInvariants | None:
        """Return the features that are the same in all rows, in steps of max_ids; None if all may differ."""
        return row_invariants(self._whole, self._pooling_of, bound, max_ids)

    def in_order(self, features: Sequence[str]) -> bool:
        """Report whether these are all features, in the order of their columns in the whole matrix."""
        rows = [self._features[name] for name in features]
        return len(rows) == len(self.plan) and bool((np.diff(self.plan[rows, pool.OFFSET]) > 0).all())

    def pooling(self, features: Sequence[str]) -> Pooling:
        """Return the pooling of these features alone, side by side in their order from column 0 on."""
        rows = [self._features[name] for name in features]
        plan = self.lookups[rows]
        plan[:, pool.OFFSET] = np.cumsum([0, *plan[:-1, pool.WIDTH]])
        return Pooling(plan, self._scaling[rows], self._late_of(plan))

    def places(self, sequence: SequenceEntry, length: int) -> Pooling:
        """Return the pooling of a sequence's columns with so many places each, side by side."""
        pooling = self.pooling([column.name for column in sequence.columns])
        plan, max_length = pooling.plan, sequence.max_length
        plan[:, pool.MAX_LENGTH] = plan[:, pool.CODES] * length
        plan[:, pool.WIDTH] = plan[:, pool.WIDTH] // max_length * length
        plan[:, pool.OFFSET] = np.cumsum([0, *plan[:-1, pool.WIDTH]])
        return pooling

    def longest_history(self, bound: BoundRequest) -> int:
        """Return the events of the longest history of a request whose user inputs have one row."""
        inputs = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS)
        return max([row_length(inputs[source]) // codes for source, codes in self._histories], default=0)

    def source(self, name: str) -> int:
        """Return the number of an input that is no string, among BoundRequest.keep."""
        return self._sources.numbers[name, 0]

    def _sent(self, bound: BoundRequest) -> NDArray[np.int64]:
        """Return a request's inputs, those left out without rows: what fills them has no number that is refused."""
        inputs: NDArray[np.int64] = inputs_of([bound])[0]
        if self.late:
            inputs[left_out(inputs), pool.ROWS] = 0
        return inputs

    def _late_of(self, plan: NDArray[np.int64]) -> list[LateValues]:
        return [late for late in self.late if late.feeds(plan[:, pool.SOURCE])]

    def _pooling_of(self, rows: Any) -> Pooling:
        """Return the pooling of some features, in the columns that fill() writes them to."""
        plan = self.plan[rows]
        return Pooling(plan, self.scaling[rows], self._late_of(plan))


def row_invariants(
    whole: Pooling, some: Callable[[Any], Pooling], bound: BoundRequest, max_ids: int
) -> RowInvariants | None:
    """Divide as SparsePlan.row_invariants() says; `some` returns features of `whole` in the same columns."""
    words = np.frombuffer(bound.words, np.int64).reshape(-1, pool.INPUT_FIELDS)
    sources, tables = whole.plan[:, pool.SOURCE], whole.plan[:, pool.TABLE]
    invariant = words[sources, pool.ROWS] == 1
    if not invariant.any():
        return None
    ids = 0
    for source in np.unique(sources[invariant & (tables >= 0)]).tolist():
        ids += row_length(words[source])
    parts: list[PoolingStep] = []
    step_rows: list[int] = []
    step_ids = 0
    for feature in np.flatnonzero(invariant).tolist():
        source, max_length = words[sources[feature]], int(whole.plan[feature, pool.MAX_LENGTH])
        filled_late = source[pool.FILLED_BY] != pool.SENT
        length = row_length(source) if source[pool.SPLITS] or filled_late else int(tables[feature] >= 0)
        length = min(length, max_length) if max_length > 0 else length
        # A list that a record fills has no more values than the record, and is read with its batch.
        if length > max_ids and not filled_late and COMBINER_OF_CODE[int(whole.plan[feature, pool.COMBINER])].merge:
            parts += _pieces(whole, bound, words, feature, length, max_ids)
            continue
        if step_rows and step_ids + length > max_ids:
            parts.append(PoolingStep(some(step_rows), bound))
            step_rows, step_ids = [], 0
        step_rows.append(feature)
        step_ids += length
    if step_rows:
        parts.append(PoolingStep(some(step_rows), bound))
    return RowInvariants(ids, parts, some(~invariant))


def _pieces(
    whole: Pooling, bound: BoundRequest, words: NDArray[np.int64], feature: int, length: int, max_ids: int
) -> Iterator[PoolingStep]:
    """Yield the steps that combine one feature's list: in order, so bit-identical to combining it at once."""
    scaling, plan = whole.scaling[feature : feature + 1], whole.plan[feature : feature + 1].copy()
    fields = [pool.SOURCE, pool.COMBINER, pool.OFFSET, pool.WIDTH, pool.CODES]
    source, code, offset, width, codes = plan[0, fields].tolist()
    combiner = COMBINER_OF_CODE[code]
    plan[0, [pool.COMBINER, pool.MAX_LENGTH]] = COMBINERS[combiner.merge].code, 0
    for start in range(0, length, max_ids):
        splits, piece_words = np.array([start, min(start + max_ids, length)], np.int64), words.copy()
        piece_words[source, pool.SPLITS] = address(splits)
        divisor = combiner.divisor(length // codes) if splits[1] == length else np.float32(1)
        piece = BoundRequest(1, int(splits[1]) - start, piece_words.tobytes(), (bound, splits))
        yield PoolingStep(Pooling(plan, scaling), piece, slice(offset, offset + width), divisor)
        plan = plan.copy()
        plan[0, pool.KIND] = pool.KIND_MORE


def row_length(words: NDArray[np.int64]) -> int:
    """Return the number of values in an input's one row, int64 [INPUT_FIELDS]; the most of one that is left out."""
    _, _, stride, splits, filled_by = words.tolist()
    return int(read_word(splits + 8).value) if splits and filled_by == pool.SENT else int(stride)


def _transforms(manifest: Manifest) -> Transforms | None:
    if not manifest.transforms:
        return None
    from freshet_serving.processor.features.evaluation import Transforms

    return Transforms(manifest)


def _events(manifest: Manifest) -> SequenceColumns | None:
    if not manifest.sequences:
        return None
    from freshet_serving.processor.features.sequences import SequenceColumns

    return SequenceColumns(manifest)


def _entities(manifest: Manifest, sources: Sources) -> list[EntityRecords]:
    if not manifest.entities:
        return []
    from freshet_serving.processor.features.entity_records import EntityRecords

    return [EntityRecords(manifest, entity, sources.numbers) for entity in manifest.entities if entity.inputs]


def _stage_runs(manifest: Manifest, stage: Stage, growth: StageGrowth | None) -> StageRuns:
    from freshet_serving.processor.features.growth_meter import assumed
    from freshet_serving.processor.features.stage_runs import StageRuns

    return StageRuns(manifest, stage, growth or assumed(manifest))


def _stage_rows(manifest: Manifest, stage: StageRuns, sources: Sources, lookups: NDArray[np.int64]) -> StageRows:
    from freshet_serving.processor.features.stage_rows import StageRows

    assert manifest.stage is not None, "a stage that reads rows"
    outputs = {i.name: sources.numbers[i.name, 0] for i in manifest.stage.outputs}
    count = sum(len(manifest.rows_of(lookup)) for lookup in manifest.stage_lookups)
    return StageRows(manifest, stage, outputs, lookups[len(lookups) - count :])
