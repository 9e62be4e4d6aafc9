"""Judge whether a full version may be served. Pure: figures in, a verdict out.

The new version and the served one score the same newest rows, from their packages as a server would. Most noise of an
AUC is common to both then: the standard error of the difference (DeLong 1988) is several times smaller than either's.
The new version was trained on those rows and the served one perhaps not, which hides a loss. So held-out rows, scored
before training on them, are compared with those of the version before.

Labels that are wrong throughout escape all of these, because the new version fits them. Three figures reveal it: the
served version orders the rows the other way round (inverted labels), lacks rows for most ids (another seed), or had
other values of a feature by a factor (other units).

A figure is out of bounds if it is worse by more than a floor ([publish.gate]), a multiple of its sampling error, and a
multiple of its usual difference between versions, which notes keep. The verdict says what could not be judged.

Rejected: fixed bounds alone (a change of AUC by 0.03 a night is usual for one model and a catastrophe for another);
unpaired held-out rows alone (six standard errors of 2,000 rows are an AUC of 0.08); significance alone (with a million
rows every retrain differs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.gate_section import GateConfig
from freshet_serving.models.training.newest_events import RankedEvents
from freshet_serving.models.training.window_guard import auc_error, row_losses

AUC = "held-out AUC"
SIGMAS = 6.0
"""Differences within this many sampling errors are ignored."""
UNITS = 5.0
"""A feature has other units if its values are larger or smaller by this factor."""
LEAST_ROWS = 100
"""Minimum of newest rows to judge labels and scores by."""
ONE_CLASS_ROWS = 1000
"""Minimum of rows with one label to refuse a first version, of which no share of positive labels is known."""
CHANCE = 1e-6
"""One label in all newest rows is refused if that is less likely than this."""
OTHER_IDS = 0.5
"""Drop in the share of ids known to the served version that means ids of another kind."""
OPPOSITE = -0.1
"""Rank correlation of the versions' scores below which one has learned the opposite."""
REPORTED_SIGMAS, REPORTED = 3.0, 0.05
"""A calibration beyond both is reported, not refused."""
REPEATED = 0.05
"""Rise in the share of repeated rows that suggests rows delivered twice."""
KEPT_MOVES, LEARNED_MOVES = 20, 5
DEPENDENT = 2.0
"""Held-out rows may come from few users, and tomorrow's from others: until the usual difference is known, their error
is assumed to be this multiple of that of independent rows."""
MAX_NAMES = 10_000

Floats = NDArray[np.float32]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Quality of held-out rows before training on them, with its sampling error.

    It is from 0 to 1, higher is better, or NaN without such rows.
    """

    figure: str = ""
    value: float = math.nan
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """Figures of a version on the newest rows when it was new. JSON-able.

    Attributes:
        mean_label: NaN without rows.
        coverage: By feature, share of the rows' ids that have a row that is not all 0.
        values: By feature of numbers, median and spread (10 % to 90 %).
        constant: Features with one value in all rows.
        repeated: Share of rows that repeat another one; NaN if unknown.
    """

    trained_rows: int = 0
    mean_label: float = math.nan
    held_out: HeldOut = HeldOut()
    coverage: dict[str, float] = field(default_factory=dict)
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    constant: list[str] = field(default_factory=list)
    repeated: float = math.nan

    def to_notes(self) -> dict[str, Any]:
        """Return it for a manifest's notes, without NaN."""
        notes = asdict(self)
        for name in ("mean_label", "repeated"):
            if math.isnan(notes[name]):
                del notes[name]
        if math.isnan(self.held_out.value):
            del notes["held_out"]
        return notes

    @classmethod
    def from_notes(cls, raw: Any) -> VersionFigures | None:
        """Parse the result of to_notes(); None for anything else."""
        try:
            coverage, values, constant = raw.get("coverage", {}), raw.get("values", {}), raw.get("constant", [])
            if max(len(coverage), len(values), len(constant)) > MAX_NAMES:
                return None
            return cls(
                int(raw.get("trained_rows", 0)),
                float(raw.get("mean_label", math.nan)),
                HeldOut(str(held_out["figure"])[:64], float(held_out["value"]), float(held_out["error"]))
                if (held_out := raw.get("held_out"))
                else HeldOut(),
                {str(name): float(share) for name, share in coverage.items()},
                {str(name): (float(median), float(spread)) for name, (median, spread) in values.items()},
                [str(name) for name in constant],
                float(raw.get("repeated", math.nan)),
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """The version before.

    Attributes:
        figures: Its figures when it was new; None if unknown.
        moves: By figure, differences between successive versions, newest last.
        scores: Its scores of the newest rows [n]; None if it cannot score them.
        coverage: As in VersionFigures, of the newest rows.
        ranked: The newest events as it ranks them; None for other networks, or if it cannot.
    """

    number: int
    features: frozenset[str]
    figures: VersionFigures | None = None
    moves: dict[str, list[float]] = field(default_factory=dict)
    scores: Floats | None = None
    coverage: Mapping[str, float] = field(default_factory=dict)
    ranked: RankedEvents | None = None


@dataclass(slots=True)
class Verdict:
    """The verdict; `refused` has the clearest reason first, and is empty if the version may be served."""

    refused: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    moves: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Judgement:
    """The judgement of a new version by labels and scores [n] of the newest rows, or by `ranked` events.

    Labels are empty if they cannot be read; `served` is None for the first version; only next-item networks and towers
    have `ranked` events.
    """

    bounds: GateConfig
    labels: Floats
    scores: Floats
    figures: VersionFigures
    features: frozenset[str]
    served: ServedVersion | None
    ranked: RankedEvents | None = None

    def __post_init__(self) -> None:
        self._rows = len(self.labels) if self.ranked is None else len(self.ranked.ranks)
        self._before = self.served.figures if self.served is not None else None
        moves = {} if self.served is None else {name: [*moves] for name, moves in self.served.moves.items()}
        self._verdict = Verdict(moves=moves)
        self._name = f"version {self.served.number}" if self.served is not None else ""

    def verdict(self) -> Verdict:
        verdict = self._verdict
        if self.served is None:
            verdict.unjudged.append("no version to compare with")
        elif self._before is None:
            verdict.unjudged.append(f"{self._name} has no figures of its own to compare with")
        if lost := int((~np.isfinite(self.scores)).sum()):
            verdict.refused.append(f"{lost:,} of {len(self.scores):,} scores are not numbers")
        self._judge_data()
        if self._rows < LEAST_ROWS:
            verdict.unjudged.append(f"{self._rows:,} newest rows, {LEAST_ROWS} are needed to compare scores")
        elif self.ranked is not None:
            self._compare_ranks(self.ranked)
        elif not lost and not self._is_constant() and not self._has_one_class():
            self._compare()
        self._judge_held_out()
        return verdict

    def _judge_data(self) -> None:
        """Compare rows, features, ids and units with the version before."""
        refused, served, before, figures = self._verdict.refused, self.served, self._before, self.figures
        if served is None:
            return
        if missing := sorted(served.features - self.features):
            refused.append(f"feature {missing[0]!r} is missing, which {self._name} reads")
        if before is None:
            return
        least = self.bounds.rows * before.trained_rows
        if 0 < figures.trained_rows < least:
            refused.append(
                f"trained on {figures.trained_rows:,} rows, expected at least {least:,.0f}"
                f" ({self._name}: {before.trained_rows:,}): {least - figures.trained_rows:,.0f} too few"
            )
        if self._rows < LEAST_ROWS:
            return
        if figures.repeated > before.repeated + REPEATED:
            self._verdict.reported.append(
                f"{figures.repeated:.1%} of the {len(self.labels):,} newest rows are there more than once,"
                f" {before.repeated:.1%} of those of {self._name}: rows may have been delivered twice"
            )
        for name in figures.constant:
            if name in served.features and name not in before.constant:
                refused.append(f"feature {name!r} has one value in all {len(self.labels):,} newest rows")
        for name, share in figures.coverage.items():
            self._judge_ids(name, share, before.coverage.get(name, math.nan), served.coverage.get(name, math.nan))
        for name, (median, spread) in figures.values.items():
            factor = _factor((median, spread), before.values.get(name, (math.nan, math.nan)))
            if factor > UNITS or factor < 1 / UNITS:
                refused.append(
                    f"feature {name!r} has other units: its values are {factor:.3g} times those of {self._name},"
                    f" expected less than a factor of {UNITS:g}"
                )

    def _judge_ids(self, name: str, share: float, usual: float, now: float) -> None:
        """Compare the share of ids with a row with those of the version before, when new (`usual`) and now."""
        refused = self._verdict.refused
        least = min(usual, now) - self.bounds.coverage
        if share < least:
            refused.append(
                f"{share:.1%} of the ids of {name!r} have a row that is not all 0, expected at least {least:.1%}:"
                f" {least - share:.1%} too few"
            )
        if now < usual - OTHER_IDS:
            refused.append(
                f"{now:.1%} of the ids of {name!r} are ids that {self._name} knows, expected at least"
                f" {usual - OTHER_IDS:.1%}: ids of another kind or seed"
            )

    def _is_constant(self) -> bool:
        if float(self.scores.max()) - float(self.scores.min()) > 1e-9:
            return False
        self._verdict.refused.append(f"all {len(self.scores):,} scores are {float(self.scores[0]):.6g}")
        return True

    def _has_one_class(self) -> bool:
        """Return True if AUC and log-loss are undefined, and refuse it unless it may be chance."""
        rows, positive = len(self.labels), int((self.labels > 0.5).sum())
        if 0 < positive < rows:
            return False
        share = self._before.mean_label if self._before is not None else math.nan
        if math.isnan(share) and self.served is not None and self.served.scores is not None:
            share = float(np.mean(self.served.scores))
        other = share if positive == 0 else 1 - share
        rare = rows >= ONE_CLASS_ROWS if math.isnan(other) else rows * math.log1p(-min(other, 0.999)) < math.log(CHANCE)
        line = f"all labels of the {rows:,} newest rows are {int(positive > 0)}"
        if rare:
            self._verdict.refused.append(f"{line}, expected both 0 and 1")
        else:
            self._verdict.unjudged.append(line)
        return True

    def _compare(self) -> None:
        labels, scores, served = self.labels, self.scores, self.served
        calibration, error = _calibration(labels, scores)
        if abs(calibration) > max(REPORTED, REPORTED_SIGMAS * error):
            self._verdict.reported.append(f"the mean score is {math.exp(calibration):.3g} times the mean label")
        if served is None or served.scores is None or not np.isfinite(served.scores).all():
            if served is not None:
                self._verdict.unjudged.append(f"{self._name} cannot score the newest rows")
            return
        old, drop, noise = auc_drop(labels, served.scores, scores)
        self._check("auc", "AUC", old, old - drop, drop, self.bounds.auc_drop, noise, same_rows=True)
        self._judge_old_auc(old)
        losses = row_losses(labels, served.scores)
        rises = row_losses(labels, scores) - losses
        usual = max(float(losses.mean()), 1e-12)
        rise, noise = float(rises.mean()) / usual, float(rises.std()) / math.sqrt(len(rises)) / usual
        self._check("loss", "log-loss", usual, usual * (1 + rise), rise, self.bounds.loss_rise, noise, True, usual)
        off = _calibration(labels, served.scores)[0]
        further = abs(calibration) - abs(off)
        bound, shown = self.bounds.calibration, "log of mean score over mean label"
        self._check("calibration", shown, off, calibration, further, bound, error, same_rows=True)
        order, noise = _rank_correlation(served.scores, scores), 1 / math.sqrt(len(scores))
        if order < min(OPPOSITE, -SIGMAS * noise):
            self._verdict.refused.append(
                f"it orders the rows against {self._name} (rank correlation {order:.2f}, expected at least"
                f" {min(OPPOSITE, -SIGMAS * noise):.2f}): labels may be inverted"
            )

    def _compare_ranks(self, ranked: RankedEvents) -> None:
        """Compare both versions' ranks event by event."""
        if ranked.alike:
            self._verdict.refused.append(f"all {self._rows:,} histories have the same vector")
            return
        served = self.served.ranked if self.served is not None else None
        if served is None or len(served.ranks) != self._rows:
            if self.served is not None:
                self._verdict.unjudged.append(f"{self._name} cannot rank the newest events")
            return
        for figure, shown, old, new in (
            ("ndcg", f"NDCG@{ranked.top}", served.gains(), ranked.gains()),
            ("hit_rate", f"hit rate@{ranked.top}", served.hits(), ranked.hits()),
        ):
            drops = old - new
            noise = float(drops.std()) / math.sqrt(len(drops))
            floor = self.bounds.held_out_drop
            before = float(old.mean())
            self._check(figure, shown, before, float(new.mean()), float(drops.mean()), floor, noise, same_rows=True)

    def _judge_old_auc(self, old: float) -> None:
        """Refuse labels that fit neither version; a served version that is merely old fits badly alone."""
        before, now = self._before.held_out if self._before is not None else HeldOut(), self.figures.held_out
        if before.figure != AUC or now.figure != AUC:
            return
        positive = float((self.labels > 0.5).sum())
        noise = math.hypot(before.error, auc_error(old, positive, len(self.labels) - positive))
        bound = max(self.bounds.held_out_drop, SIGMAS * noise)
        if before.value - old > bound and before.value - now.value > self.bounds.held_out_drop:
            self._verdict.refused.append(
                f"the labels fit neither {self._name} (AUC {old:.4f}, expected at least {before.value - bound:.4f}) nor"
                f" the held-out scores of the new version (AUC {now.value:.4f}): labels may be of other rows"
            )

    def _judge_held_out(self) -> None:
        old, new = self._before.held_out if self._before is not None else HeldOut(), self.figures.held_out
        if old.figure == new.figure and new.figure:
            drop, noise = old.value - new.value, math.hypot(old.error, new.error)
            self._check("held_out", new.figure, old.value, new.value, drop, self.bounds.held_out_drop, noise)

    def _check(
        self,
        figure: str,
        shown: str,
        usual: float,
        value: float,
        worse: float,
        floor: float,
        noise: float,
        same_rows: bool = False,
        unit: float = 1.0,
    ) -> None:
        """Refuse a figure that is worse by more than its bound, and remember the difference.

        `noise` is the sampling error of independent rows, `unit` the multiple of `worse` in the unit of `value`, and
        same_rows says that both versions have it of the same rows.
        """
        if math.isnan(worse):
            return
        learned = self._usual_move(figure)
        if not same_rows and not learned:
            noise *= DEPENDENT
        bound = max(floor, SIGMAS * noise, SIGMAS * learned)
        if worse > bound:
            where = f" on the same {self._rows:,} rows" if same_rows else ""
            self._verdict.refused.append(
                f"{shown} {value:.4f}, {self._name} has {usual:.4f}{where}: worse by {worse * unit:.4f}, the bound is"
                f" {bound * unit:.4f}, exceeded by {(worse - bound) * unit:.4f}"
            )
        self._remember(figure, worse)

    def _usual_move(self, figure: str) -> float:
        """Return a figure's usual difference between versions; 0 until that is known."""
        moves = self._verdict.moves.get(figure, [])
        return math.sqrt(sum(move**2 for move in moves) / len(moves)) if len(moves) >= LEARNED_MOVES else 0.0

    def _remember(self, figure: str, move: float) -> None:
        self._verdict.moves[figure] = [*self._verdict.moves.get(figure, []), round(move, 6)][-KEPT_MOVES:]


def moves_from_notes(raw: Any) -> dict[str, list[float]]:
    """Parse Verdict.moves of notes; what is malformed is left out."""
    if not isinstance(raw, Mapping):
        return {}
    return {
        str(name)[:32]: [float(move) for move in moves[-KEPT_MOVES:] if type(move) is float and math.isfinite(move)]
        for name, moves in list(raw.items())[:16]
        if isinstance(moves, list)
    }


def auc_drop(labels: Floats, old: Floats, new: Floats) -> tuple[float, float, float]:
    """Return the AUC of the old scores [n], the drop to the new ones', and its standard error (DeLong 1988)."""
    positive = labels > 0.5
    first, second = _placements(positive, old), _placements(positive, new)
    drops = [a - b for a, b in zip(first, second)]
    variance = sum(float(drop.var()) / max(1, len(drop) - 1) for drop in drops)
    return float(first[0].mean()), float(drops[0].mean()), math.sqrt(variance)


def _placements(positive: NDArray[np.bool_], scores: Floats) -> tuple[Float64s, Float64s]:
    """Return each positive row's share of negative rows below it, and each negative's of positive rows above it."""
    high, low = np.sort(scores[positive]), np.sort(scores[~positive])

    def below(ordered: Floats, values: Floats) -> Float64s:
        sides = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
        shares: Float64s = sides / (2.0 * max(1, len(ordered)))
        return shares

    return below(low, scores[positive]), 1.0 - below(high, scores[~positive])


def _calibration(labels: Floats, scores: Floats) -> tuple[float, float]:
    """Return the logarithm of the mean score over the mean label, and its sampling error."""
    share = float(np.clip(labels, 0, 1).mean())
    mean = max(float(scores.mean(dtype=np.float64)), 1e-12)
    return math.log(mean / share), math.sqrt((1 - share) / (share * len(labels)))


def _rank_correlation(served: Floats, new: Floats) -> float:
    """Return Spearman's rank correlation; ties in any order, which a constant score of the served version makes 0."""
    if float(served.max()) == float(served.min()):
        return 0.0
    first, second = (np.argsort(np.argsort(scores, kind="stable")).astype(np.float64) for scores in (served, new))
    return float(np.corrcoef(first, second)[0, 1])


def _factor(now: tuple[float, float], before: tuple[float, float]) -> float:
    """Return by which factor values have grown, by median and spread alike; 1 if these disagree."""
    spread = now[1] / before[1] if before[1] > 0 and now[1] > 0 else 1.0
    if not math.isfinite(spread):
        return 1.0
    if abs(before[0]) < 0.1 * before[1]:
        return spread
    median = now[0] / before[0]
    if not (math.isfinite(median) and median > 0) or (median > 1) != (spread > 1):
        return 1.0
    return min(median, spread) if spread > 1 else max(median, spread)
