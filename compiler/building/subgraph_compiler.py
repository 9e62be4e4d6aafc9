"""Compile every subgraph for several variants, measure them, and choose the executables.

Each subgraph (compiler.building.parts) has its own calibration. A lower precision never computes a user's part, because
its numbers are not scores, and computes candidates only if it has passed on the whole graph, AUC included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.calibrate import Calibration, LabelledRows, Tolerance, calibrate, check_ahead
from freshet_serving.compiler.building.compile import build, lower, lower_ahead, write_rows
from freshet_serving.compiler.building.parts import DensePart, GraphParts
from freshet_serving.compiler.dense.dense_graph import Tensors
from freshet_serving.compiler.progress import Reporter, SilentReporter
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.package import SCORE, USER, WHOLE, ExecutableEntry, Feature, role, shorter

PARTS = {USER: "the user's part", SCORE: "the candidates' part"}


def title(name: str) -> str:
    part, length = role(name)
    return f"{PARTS[part]} of at most {length} events" if length else PARTS[part]


@dataclass(frozen=True, slots=True)
class SubgraphCompiler:
    """One compilation of a version.

    Attributes:
        skipped: Variants that could not be compiled, each with the reason.
        files: By subgraph, the file of rows to check a lower precision with.
    """

    folder: Path
    skipped: list[str]
    precision: str
    bound: Tolerance
    reporter: Reporter = field(default_factory=SilentReporter)
    files: dict[str, str] = field(default_factory=dict)

    def all(
        self,
        parts: GraphParts,
        features: Sequence[Feature],
        variants: Sequence[Variant],
        rows: Tensors,
        labelled: LabelledRows | None = None,
    ) -> dict[str, Calibration]:
        """Compile all parts of a graph for the variants and return the calibration of each; rows are the whole graph's.

        The user/candidate split is left out if no backend can express it: requests are then computed whole. BadInput is
        raised if no variant can compute the whole graph.
        """
        whole = self._subgraph(parts.listed(WHOLE), "", parts.by_subgraph[WHOLE], variants, rows, labelled)
        exact = [v for v in variants if v.precision == "float32"]
        if parts.user_split is None:
            return {WHOLE: whole}
        if not exact:
            parts.notes.append("user-once: left out, because the user's part is computed in float32 only")
            return {WHOLE: whole}
        passed = {(e.backend, e.precision) for e in whole.measured}
        lower_too = [v for v in variants if v in exact or (v.backend, v.precision) in passed]
        tried, inputs = {USER: exact, SCORE: lower_too}, parts.given(rows, features)

        def both(length: int) -> dict[str, Calibration]:
            names = {part: shorter(part, length) if length else part for part in (USER, SCORE)}
            return {n: self._subgraph(n, title(n), parts.by_subgraph[n], tried[p], inputs[n]) for p, n in names.items()}

        try:
            done = both(0)
        except FreshetError as error:
            parts.notes.append(f"user-once: left out: {error}")
            return {WHOLE: whole}
        # What is slower at the longest histories is not tried at others.
        for part in (USER, SCORE):
            fastest = {(e.backend, e.precision) for e in done[part].chosen(self.precision)}
            tried[part] = [v for v in tried[part] if (v.backend, v.precision) in fastest]
        for length in parts.shorter:
            try:
                done |= both(length)
            except FreshetError as error:
                parts.notes.append(f"histories: not compiled for at most {length} events: {error}")
        return {WHOLE: whole, **done}

    def chosen(self, calibrations: Mapping[str, Calibration]) -> list[ExecutableEntry]:
        listed = [entry for calibration in calibrations.values() for entry in calibration.chosen(self.precision)]
        error = self.bound.error
        return [
            e if e.precision == "float32" else replace(e, max_error=error, rows=self.files[e.subgraph]) for e in listed
        ]

    def ahead(
        self,
        parts: GraphParts,
        names: Iterable[str],
        targets: Sequence[str],
        backends: Sequence[str],
        precision: str = "float32",
        inputs: Mapping[str, Tensors] | None = None,
        labelled: LabelledRows | None = None,
    ) -> list[ExecutableEntry]:
        """Compile parts of a graph for GPUs that need not be here; nobody measures the result.

        Args:
            backends: The preferred one first. Any but the last is left out, with the reason, if it fails for a part.
            precision: A lower precision, compiled beside float32 and preferred to it except for the user's part.
            inputs: With a lower precision: by part, rows to check it with.
            labelled: Rows for the AUC of the whole graph.

        Raises:
            FreshetError: A part cannot be compiled for a target, or a lower precision exceeds the bounds.
        """
        entries = []
        for name in names:
            if role(name)[1]:
                # Stages of a GPU run every request at the longest histories.
                continue
            part = parts.by_subgraph[name]
            lower_too = precision != "float32" and name != USER and bool(targets)
            if lower_too:
                rows = (inputs or {})[name]
                self._check_ahead(part, precision, rows, labelled if name == WHOLE else None)
                self.files.setdefault(parts.listed(name), write_rows(self.folder, parts.listed(name), rows))
            for target in targets:
                for each in (precision, "float32") if lower_too else ("float32",):
                    for backend in backends:
                        try:
                            entries += self._ahead(part, parts.listed(name), target, backend, each)
                        except FreshetError as error:
                            if backend == backends[-1]:
                                raise
                            self.skipped.append(f"{Variant(backend, each, target)}: {error}")
        return entries

    def _check_ahead(self, part: DensePart, precision: str, rows: Tensors, labelled: LabelledRows | None) -> None:
        lowered: Any = lower_ahead(part.graph, "", precision=precision)
        program = lowered.on_cpu(max(part.buckets))
        checked = check_ahead(part.graph, program, precision, rows, self.bound, labelled, f"xla cuda {precision}")
        if checked.refused:
            raise BadInput(f"precision {precision}: {'; '.join(checked.refused)}")

    def _ahead(self, part: DensePart, listed: str, target: str, backend: str, precision: str) -> list[ExecutableEntry]:
        entries = []
        self.reporter.begin(f"compiling for {Variant(backend, precision, target)}", len(part.buckets))
        lowered = lower_ahead(part.graph, target, backend, precision)
        for bucket in part.buckets:
            entry = build(lowered, bucket, self.folder, listed)
            if precision != "float32":
                entry = replace(entry, max_error=self.bound.error, rows=self.files[listed])
            entries.append(entry)
            self.reporter.advance(1)
        return entries

    def _subgraph(
        self,
        name: str,
        title: str,
        part: DensePart,
        variants: Sequence[Variant],
        rows: Tensors,
        labelled: LabelledRows | None = None,
    ) -> Calibration:
        """Compile and measure a part of a graph, on rows of its own input; raise BadInput if no variant computes it."""
        named = f"{title} " if title else ""
        entries = self._build(name, replace(part, graph=replace(part.graph, examples=rows)), variants, named)
        self.reporter.begin(f"measuring {named}".strip(), len(part.buckets))
        advance = lambda: self.reporter.advance(1)  # noqa: E731
        calibration = calibrate(part.graph, self.folder, entries, rows, self.bound, labelled, advance=advance)
        if any(e.precision != "float32" for e in calibration.measured):
            self.files[name] = write_rows(self.folder, name, rows)
        return calibration

    def _build(self, name: str, part: DensePart, variants: Sequence[Variant], named: str) -> list[ExecutableEntry]:
        entries: list[ExecutableEntry] = []
        for variant in variants:
            self.reporter.begin(f"compiling {named}for {variant}", len(part.buckets))
            try:
                lowered = lower(part.graph, variant)
                built = []
                for bucket in part.buckets:
                    built.append(build(lowered, bucket, self.folder, name))
                    self.reporter.advance(1)
            except FreshetError as error:
                self.skipped.append(f"{named}{variant}: {error}")
                continue
            entries += built
        if not entries:
            raise BadInput(f"no backend could compile {named or 'the graph'}: {'; '.join(self.skipped)}")
        return entries
