"""A version's subgraphs as they are run: what fills their inputs, what their executables cost, when to divide.

A request is divided into the user's part and the candidates' part where its user inputs have one row and where that is
faster: decided when a version is loaded, by timing both ways in turn, and reviewed by what requests take where the two
are close (split_choice). Dividing changes scores by no more than rounding.

A version whose programs differ from a loaded one's by their weights alone takes over its costs and decisions (PRICED),
and times nothing: the runs would delay requests, and requests would distort them.

A version whose requests have histories may have both parts for shorter histories, too. A request is divided by the
shortest length that its own histories fit, if that pays. A length whose parts are not cheaper than those of the next
longer one is never used; that is decided once, so all chunks of a request take the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package import (
    FEATURES,
    SCORE,
    USER,
    USER_TENSOR,
    Manifest,
    Subgraph,
    shorter,
    shorter_lengths,
    undivided_name,
)
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.running.buffers import Tensors
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.fillers import Fill, fillers
from freshet_serving.processor.running.opening import io_spec

if TYPE_CHECKING:
    from freshet_serving.processor.running.placed_rows import PlacedInputs
    from freshet_serving.processor.running.split_choice import SplitChoice

# A smaller saving does not pay for another run: filling and starting one costs about this much.
WORTH = 0.97


class SubgraphRun:
    """One subgraph: its inputs and outputs, what fills them, and the costs of its executables, once measured.

    `user_tensors` are the inputs that the subgraph `user` computes, `fillers` fill the others of the executables.
    """

    def __init__(self, name: str, graph: Subgraph, plan: SparsePlan) -> None:
        """Find what fills the inputs; raises BadInput if nothing here fills one."""
        self.name, self.spec = name, io_spec(name, graph)
        self.costs = CostTable({1: 1.0})
        self.user_tensors = [i.name for i in graph.inputs if i.source == USER_TENSOR]
        self.fillers = fillers(graph, plan)
        self._features = {i.name for i in graph.inputs if i.source == FEATURES}
        self._placed: PlacedInputs | None = None

    def place(self, inputs: PlacedInputs) -> None:
        self.spec, self._placed = inputs.spec, inputs

    def fill(self, view: BatchView, inputs: Tensors, features: Fill | None = None) -> None:
        """Write the view's rows into all inputs but the user's tensors, as Fill does; one without a buffer is left out.

        `features` fills inputs of features in place of the subgraph's own filler.
        """
        if self._placed is not None:
            self._placed.fill(view, inputs)
            return
        for name, fill in self.fillers:
            if name not in inputs:
                continue
            if features is not None and name in self._features:
                fill = features
            fill(view, inputs[name])

    def lend(self, computed: Tensors, request: int, inputs: Tensors) -> None:
        """Copy the user's tensors of one request (a row of `computed`) into the inputs that read them."""
        for name in self.user_tensors:
            inputs[name][0] = computed[name][request]


@dataclass(frozen=True, slots=True, eq=False)
class DividedRun:
    """Both parts of a divided request, for histories of at most `length` events."""

    user: SubgraphRun
    score: SubgraphRun
    length: int

    def dense_s(self, rows: int) -> float:
        """Return the predicted seconds of both parts' runs for a request of so many candidates."""
        return self.user.costs.dense_s(1) + self.score.costs.dense_s(rows)


PRICED: WeakValueDictionary[Hashable, GraphRun] = WeakValueDictionary()
"""The newest priced run of each set of programs in this process, as long as a version has it."""


class GraphRun:
    """The subgraphs of one version; `user`, `score` and `split` are None if it is not divided.

    Attributes:
        undivided: Scores rows of several requests at once.
        user: Computes what depends on the user alone.
        score: Scores the candidates of one request from the user's tensors.
        split: Which requests are divided.
        in_thread: True if a run is mostly computed by the calling thread.
        endable: True if a run's time may depend on values, and it can be ended (running.run_limit).
    """

    def __init__(self, manifest: Manifest, plan: SparsePlan) -> None:
        """Find what fills the inputs of every subgraph; raise BadInput if nothing here fills one."""
        self.by_name = {name: SubgraphRun(name, graph, plan) for name, graph in subgraphs(manifest).items()}
        self.undivided = self.by_name[undivided_name(manifest)]
        self.user = self.by_name.get(USER)
        self.score = self.by_name[SCORE] if self.user is not None else None
        self.in_thread = self.endable = False
        self._plan = plan
        self.split: SplitChoice | None = None
        self._longest: DividedRun | None = None
        self._lengths: list[DividedRun] | None = None
        self._histories = bool(plan.sequences)
        self._planned: CostTable | None = None
        if self.user is not None and self.score is not None:
            # Loaded with the first version that is divided.
            from freshet_serving.processor.running.split_choice import SplitChoice

            self.split = SplitChoice(f"{manifest.model} version {manifest.version}", WORTH)
            self._longest = DividedRun(
                self.user, self.score, max((s.max_length for s in plan.sequences.values()), default=0)
            )
        self._shorter = [
            DividedRun(self.by_name[shorter(USER, length)], self.by_name[shorter(SCORE, length)], length)
            for length in shorter_lengths(manifest)
        ]

    def price(self, costs: Mapping[str, Mapping[int, float]], stored: Mapping[int, float] | None = None) -> None:
        """Store costs measured in turn, by subgraph and bucket, and decide by them from which row counts dividing pays.

        Batches are planned by the manifest's `stored` costs of the undivided subgraph, which were measured for longer.
        """
        for name, run in self.by_name.items():
            run.costs = CostTable(costs[name])
        if self._longest is not None and self.split is not None:
            whole, divided_s = CostTable(costs[self.undivided.name]), dict[int, list[float]]()
            for divided in (self._longest, *self._shorter):
                most = max(whole.max_rows, divided.score.costs.max_rows)
                divided_s[divided.length] = [divided.dense_s(rows) for rows in range(most + 1)]
            self.split.decide(whole, divided_s)
        if self._lengths is None and self._longest is not None:
            self._lengths, longer = [], self._longest
            for divided in reversed(self._shorter):
                # The largest bucket of candidates counts for most: small requests cost little at any length.
                rows = divided.score.costs.max_rows
                if divided.dense_s(rows) < WORTH * longer.dense_s(rows):
                    self._lengths.insert(0, divided)
                    longer = divided
        if stored:
            self.undivided.costs = CostTable(stored)
        if self._histories and self._longest is not None:
            whole, longest = self.undivided.costs, self._longest
            buckets = {*whole.cost, *longest.score.costs.cost}
            self._planned = CostTable({b: min(whole.dense_s(b), longest.dense_s(b)) for b in buckets})

    def take_over(self, other: GraphRun) -> None:
        """Begin with the costs and decisions of another version that runs the same programs."""
        for name, run in self.by_name.items():
            run.costs = other.by_name[name].costs.copy()
        if self._longest is not None and other._longest is not None:
            pairs = list(zip((self._longest, *self._shorter), (other._longest, *other._shorter)))
            if self.split is not None and other.split is not None:
                self.split.take_over(other.split, {new.length: old.length for new, old in pairs})
            self._lengths = [new for new, old in pairs[1:] if old.length in other.lengths]
        self._planned = None if other._planned is None else other._planned.copy()
        self.in_thread = other.in_thread

    @property
    def costs(self) -> CostTable:
        """Costs to plan with: the undivided subgraph's, or the cheaper way's where requests have histories.

        A history that is copied to each candidate costs up to hundreds of times as much, and almost no request runs so.
        """
        return self._planned or self.undivided.costs

    @property
    def lengths(self) -> list[int]:
        """Lengths of histories, ascending, that have parts of their own which are cheaper than longer ones."""
        return [divided.length for divided in self._lengths or ()]

    def divided(self, bound: BoundRequest, rows: int) -> DividedRun | None:
        """Return the parts to divide a request by, or None if it is faster whole, in a batch with others.

        The same for all chunks of a request (`rows` is of all together): only the timing at load counts.
        """
        parts = self.fitting(bound)
        return parts if parts is not None and self.pays(parts, rows) else None

    def divided_now(self, bound: BoundRequest, rows: int, explore: bool) -> DividedRun | None:
        """Return the parts to divide a request of one chunk by, or None, by what such requests have taken.

        With `explore`, take the other way than usual where it costs little more.
        """
        parts = self.fitting(bound)
        if parts is None or self.split is None:
            return None
        return parts if self.pays(parts, rows) != self.split.reverses(parts.length, rows, explore) else None

    def pays(self, parts: DividedRun, rows: int) -> bool:
        """Return True if, as timed at load, these parts are faster than the whole, in a batch with others."""
        return self.split is not None and self.split.pays(parts.length, rows)

    @property
    def fewest_divided(self) -> int:
        """The fewest rows at which requests of all lengths that are ever divided are; 1 if none are."""
        every = [*(self._lengths or ()), *([self._longest] if self._longest is not None else ())]
        ever = [parts for parts in every if any(self._divided_rows(parts))]
        most = max((len(self._divided_rows(parts)) for parts in ever), default=1)
        return next((rows for rows in range(1, most) if all(self.pays(parts, rows) for parts in ever)), 1)

    @property
    def thresholds(self) -> list[int]:
        """Row counts, ascending, at which requests begin to be divided, stop, begin again, and so on."""
        return self.split.thresholds(self._longest.length) if self.split is not None and self._longest else []

    def fitting(self, bound: BoundRequest) -> DividedRun | None:
        """Return the parts that a request would be divided by, if it were; None if it cannot be."""
        if not bound.user_split:
            return None
        if self._lengths:
            events = self._plan.longest_history(bound)
            for divided in self._lengths:
                if events <= divided.length:
                    return divided
        return self._longest

    def _divided_rows(self, parts: DividedRun) -> list[bool]:
        return self.split.divided_now(parts.length) if self.split is not None else []
