"""Compare the replicas of a fleet by their own reports: which serve the newest record, and which do not.

Pure functions: replies come in as JSON of any shape, a FleetReport comes out. A malformed reply costs that replica its
line and does not affect the others. A replica that reports false values can make the others look behind, and no more.

The newest state of a version is that of the replica that serves most of its records; of several, the state that most of
them serve. It is not the one with the highest step: a rollback is newer than what it undoes. A DIVERGED replica never
defines it, unless all are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.processor.errors import BadInput, printable
from freshet_serving.processor.generation import CHAIN_STATES, DIVERGED, WAITING
from freshet_serving.serving.extensions.fleet.fleet_trainers import TrainerStatus, newest_trainers, read_trainer

MAX_MODELS, MAX_TEXT = 10_000, 200
HIGHEST = 2**63
BEHIND, ABSENT = "BEHIND", "ABSENT"
"""Problems of a version on one replica, besides WAITING and DIVERGED.

BEHIND: it does not serve the newest record. ABSENT: it does not serve the version at all, although others serve it as
their newest or under a label.
"""

Key = tuple[str, int]
"""A model's name and a version number."""


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """A version as one replica reports it.

    Attributes:
        step: Step of the generation that it serves, whose digest is `digest`.
        state: State of its change log, for the reason `reason`; "" for none.
        records: Number of records that it knows.
        behind: Number of known generations that it does not serve.
        staleness_s: None if it is not reported.
    """

    step: int
    digest: str
    state: str
    reason: str
    records: int
    behind: int
    staleness_s: float | None


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The report of one replica at the address `where`; `problem` is why there is none that can be read."""

    where: str
    ready: bool = False
    problem: str = ""
    versions: Mapping[Key, ReplicaVersion] = field(default_factory=dict)
    labelled: frozenset[Key] = frozenset()
    trainers: Mapping[str, TrainerStatus] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """One version on one replica, compared with the fleet.

    Attributes:
        standing: The version as the replica reports it; None if it does not serve it.
        behind: Number of records that the newest state of the fleet is ahead.
        wrong: BEHIND, ABSENT, WAITING, DIVERGED or "", for the reason `why`.
    """

    where: str
    ready: bool
    model: str
    version: int
    standing: ReplicaVersion | None
    behind: int
    wrong: str
    why: str


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The result of a comparison.

    Attributes:
        lines: A line for each version that each replica serves or should serve.
        problems: Descriptions of what is wrong, the worst first.
        trainers: The newest status of each trainer, by name of the model.
    """

    replicas: tuple[ReplicaStatus, ...]
    lines: tuple[VersionComparison, ...]
    problems: tuple[str, ...]
    trainers: Mapping[str, TrainerStatus]

    @property
    def healthy(self) -> bool:
        """All replicas answer, are ready, and serve the same newest records."""
        return not self.problems


def read_report(where: str, document: Any, model: str | None = None) -> ReplicaStatus:
    """Read a replica's reply to GET /admin/models, perhaps of one model alone; raises BadInput."""
    ready, models = _of(document, "ready", bool), _of(document, "models", dict)
    if len(models) > MAX_MODELS:
        raise BadInput(f"expected at most {MAX_MODELS} models, got {len(models)}")
    versions: dict[Key, ReplicaVersion] = {}
    labelled: set[Key] = set()
    trainers: dict[str, TrainerStatus] = {}
    for name, entry in models.items():
        if model is not None and name != model:
            continue
        for number, served in _of(entry, "served", dict).items():
            if not (number.isascii() and number.isdecimal() and len(number) < 20):
                raise BadInput(f"served: expected version numbers, got {_short(number)!r}")
            versions[_short(name), int(number)] = _standing(served)
        if (trainer := read_trainer(entry)) is not None:
            trainers[_short(name)] = trainer
        labels = entry.get("labels")
        if isinstance(labels, dict):
            labelled |= {(_short(name), version) for version in labels.values() if type(version) is int}
    return ReplicaStatus(where, ready, "", versions, frozenset(labelled & versions.keys()), trainers)


def _standing(served: Any) -> ReplicaVersion:
    generation, chain = _of(served, "generation", str), served.get("chain")
    step = generation.partition(".")[2]
    if not (step.isascii() and step.isdecimal() and len(step) < 20):
        raise BadInput(f"generation: expected VERSION.STEP, got {_short(generation)!r}")
    state, reason, records, behind = "", "", 0, 0
    if chain is not None:
        state, reason = _of(chain, "state", str), _of(chain, "reason", str)
        records, behind = _of(chain, "records", int), _of(chain, "behind", int)
        if state not in CHAIN_STATES or not 0 <= records < HIGHEST or not 0 <= behind < HIGHEST:
            raise BadInput("chain: expected a state and counts of records")
    staleness = served.get("staleness_s")
    if staleness is not None and (type(staleness) not in (int, float) or not 0 <= staleness < HIGHEST):
        raise BadInput("staleness_s: expected a number of seconds")
    age_s = None if staleness is None else float(staleness)
    return ReplicaVersion(int(step), _short(_of(served, "digest", str)), state, _short(reason), records, behind, age_s)


def _of(document: Any, key: str, kind: type) -> Any:
    value = document.get(key) if isinstance(document, dict) else None
    if type(value) is not kind:
        raise BadInput(f"{key}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _short(text: str) -> str:
    return printable(text)[:MAX_TEXT]


def compare(replicas: Sequence[ReplicaStatus], model: str | None = None) -> FleetReport:
    """Compare the replicas; a model that the user named must be served."""
    by_version: dict[Key, dict[str, ReplicaVersion]] = defaultdict(dict)
    for status in replicas:
        for key, standing in status.versions.items():
            by_version[key][status.where] = standing
    labelled = {key for status in replicas for key in status.labelled}
    lines = []
    for key in sorted(by_version):
        newest = _newest(by_version[key].values())
        odd = _odd(by_version[key].values())
        lines += [_judge(status, key, newest, odd) for status in replicas if _belongs(status, key, key in labelled)]
    trainers = newest_trainers(status.trainers for status in replicas)
    return FleetReport(tuple(replicas), tuple(lines), tuple(_problems(replicas, lines, model)), trainers)


def _belongs(status: ReplicaStatus, key: Key, labelled: bool) -> bool:
    """Return whether the replica serves the version or should serve it.

    It should serve a version that is newer than all that it serves of the model, or that has a label on another
    replica, because clients may request it. Other old versions are leftovers.
    """
    if status.problem:
        return False
    return (
        key in status.versions or labelled or all(number < key[1] for name, number in status.versions if name == key[0])
    )


def _newest(standings: Iterable[ReplicaVersion]) -> ReplicaVersion:
    reported = list(standings)
    sound = [each for each in reported if each.state != DIVERGED] or reported
    most = max(each.records - each.behind for each in sound)
    newest = [each for each in sound if each.records - each.behind == most]
    digests = Counter(each.digest for each in newest)
    return max(newest, key=lambda each: (digests[each.digest], each.records, each.step, each.digest))


def _odd(standings: Iterable[ReplicaVersion]) -> set[tuple[int, str]]:
    """Return (step, digest) of each state whose digest is not the most common one at its step.

    If several digests are equally common at a step, all of the step's digests are returned.
    """
    digests: dict[int, Counter[str]] = defaultdict(Counter)
    for each in standings:
        digests[each.step][each.digest] += 1
    odd = set()
    for step, counted in digests.items():
        (first, most), *others = counted.most_common()
        if others:
            alone = all(count < most for _, count in others)
            odd |= {(step, digest) for digest in counted if digest != first or not alone}
    return odd


def _judge(status: ReplicaStatus, key: Key, newest: ReplicaVersion, odd: set[tuple[int, str]]) -> VersionComparison:
    (model, version), served = key, status.versions.get(key)

    def line(wrong: str, why: str, behind: int = 0) -> VersionComparison:
        return VersionComparison(status.where, status.ready, model, version, served, behind, wrong, why)

    if served is None:
        return line(ABSENT, f"does not serve version {version} of {model}", newest.records)
    at = f"at {model} {version}.{served.step}"
    same = served.digest == newest.digest
    behind = 0 if same else max(0, newest.records - newest.behind - served.records + served.behind)
    if served.state == DIVERGED:
        return line(DIVERGED, f"DIVERGED {at}: {served.reason}", behind)
    if (served.step, served.digest) in odd:
        return line(DIVERGED, f"DIVERGED {at}: others serve different content for this generation", behind)
    if not same:
        why = f"behind {at}, the newest is {version}.{newest.step}"
        return line(BEHIND, f"{why}: {served.reason}" if served.reason else why, max(1, behind))
    if served.state == WAITING:
        return line(WAITING, f"WAITING {at}: {served.reason}", behind)
    return line("", "", behind)


def _problems(
    replicas: Sequence[ReplicaStatus], lines: Sequence[VersionComparison], model: str | None
) -> Iterable[str]:
    if not replicas:
        yield "no replicas found"
    for wrong in (DIVERGED, ABSENT, BEHIND, WAITING):
        yield from (f"{line.where}: {line.why}" for line in lines if line.wrong == wrong)
    yield from (f"{status.where}: {status.problem}" for status in replicas if status.problem)
    yield from (f"{status.where}: not ready" for status in replicas if not status.problem and not status.ready)
    if model is not None and not lines:
        yield from (f"{status.where}: does not serve {_short(model)}" for status in replicas if not status.problem)
