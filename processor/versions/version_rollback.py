"""Going back: to an earlier generation of the served version, or to an earlier version.

The order across versions, each step durable before the next:

1. The earlier version is loaded beside the served one, verified, and caught up with its change log.
2. If a step was named, the earlier version's own change log is rolled back to it.
3. A RELEASE of the earlier version is recorded: no gate judges it again.
4. A WITHDRAW of each version between the two is recorded, then of the served one: the commit.
5. This server switches by one replacement of its routes, and unloads the later version.

Invariants
- A kill before 4 leaves every server with what it serves. After a kill later, a restarted server chooses the earlier
  version by itself, as all other servers do with their next poll.
- The record comes before the switch, or a restart would serve the later version again. The load comes before the
  record: no server is sent to a version that cannot be served.
- A server goes on with the withdrawn version until the earlier one is loaded there: no request fails.
- Versions newer than the served one are not touched: they are served when they are ready, unless something bars them.

Costs: the load of a version, if it is not loaded, and one small file for each record.

Rejected: moving the withdrawn version's folder away (a reader may be opening it, and release has to be cheap); a label
for what is served (every server would need it, and it would end "latest:1").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.versions.changes import RollbackResult

if TYPE_CHECKING:
    from freshet_serving.processor.versions.model import ServedModel


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """Target of a rollback: a version and a step, or its newest generation if `step` is None."""

    version: int
    step: int | None = None

    def __str__(self) -> str:
        return str(self.version) if self.step is None else f"{self.version}.{self.step}"

    @classmethod
    def parse(cls, text: str) -> RollbackTarget:
        """Parse `1.17` or `1`; raise BadInput."""
        if re.fullmatch(r"[1-9][0-9]{0,17}", text):
            return cls(int(text))
        try:
            generation = Generation.parse(text)
        except BadInput:
            raise BadInput(
                f"generation: expected 'version.step' such as '3.17', or a version such as '3', got {text[:40]!r}"
            ) from None
        return cls(generation.version, generation.step)


def roll_back(model: ServedModel, target: RollbackTarget | None, reason: str = "") -> RollbackResult:
    """Serve an earlier generation on every server of the repository.

    Without a target: the generation before the newest delta, or the version before one without a delta. Raises Conflict
    if there is nothing to go back to, or another writer decided otherwise, or NotFound.
    """
    served = model.pick().generation
    target = target or _before(model, served)
    if target.version > served.version and (target.step is None or target.version not in model.routes.served):
        advice = model.decisions.advice(target.version)
        raise Conflict(f"rollback: expected a generation before {served}, got {target}: {advice}")
    if target.version >= served.version:
        loaded = model.routes.served[target.version].generation
        return model.rollback(Generation(target.version, loaded.step if target.step is None else target.step), reason)
    # Downloads, if there are any, hold nobody up.
    model.prepare(target.version)
    with model.changing():
        return _to_version(model, target, model.pick().generation, reason)


def _to_version(model: ServedModel, target: RollbackTarget, served: Generation, reason: str) -> RollbackResult:
    """Go back from what is served by default to an earlier version, under the model's lock."""
    listed = model.policy.versions.versions
    if listed and target.version not in listed:
        raise Conflict(
            f"rollback: the policy of {model.name!r} serves versions {', '.join(map(str, listed))} alone; add "
            f"{target.version} to model.{model.name}.versions first"
        )
    model.load(target.version, by_hand=False)
    loaded = model.routes.served[target.version].generation
    step = loaded.step if target.step is None else target.step
    done = RollbackResult(loaded, [], model.history(target.version).top + 1, recorded=True)
    if step != loaded.step:
        done = model.rollback(Generation(target.version, step), reason)
    withdrawn = model.decisions.choosable(target.version, served.version)
    line = f"rolled back from {served} to {done.generation}{f': {reason}' if reason else ''}"
    if target.version in model.routes.traffic.out:
        model.readmit(target.version)
    model.decisions.release(target.version, line)
    recorded = model.decisions.withdraw(withdrawn, line)
    model.choose()
    now = model.pick().generation
    if now.version != target.version:
        raise Conflict(f"rollback: version {target.version} is committed but not served: this server serves {now}")
    return replace(
        done, generation=now, undone=[*done.undone, served], recorded=done.recorded and recorded, withdrawn=withdrawn
    )


def _before(model: ServedModel, served: Generation) -> RollbackTarget:
    """Return what was served before a generation; raise Conflict if it is the first."""
    steps = [link.step for link in model.loaded(served.version).line()]
    if len(steps) > 1:
        return RollbackTarget(served.version, steps[1])
    earlier = model.decisions.choosable(0, served.version)[:-1]
    if not earlier:
        raise Conflict(f"rollback: nothing was served before {served}; name a generation")
    return RollbackTarget(earlier[-1])
