"""A model as requests see it: its routes, and the policy that they follow from.

Invariants: requests only ever read `routes`, which is replaced whole, never edited, and whoever else answers by it is
told at once. Traffic (the split, the shadow, what has been taken out) belongs to a lock of its own, which is held only
while `routes` is replaced: a bad canary is taken out at once, though another version may be loading for minutes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import xxhash

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound, NotReady, SigningKeyRequired
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.routes import Routes, VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.traffic import EjectedVersion, Traffic, TrafficSplit

log = logging.getLogger("freshet.model")


class RoutedModel:
    """One model's routes and policy; who loads its versions is processor.versions.model."""

    def __init__(
        self,
        name: str,
        repository: Repository,
        clock: Clock,
        changed: Callable[[], None],
        policy: ModelPolicy | None,
    ) -> None:
        """See processor.versions.model.ServedModel."""
        self.name = name
        self._repository, self._clock, self._changed = repository, clock, changed
        self._routing = threading.Lock()
        self._configured = policy or ModelPolicy()
        self._kept_labels = repository.labels(name)
        self._told, split, out = self._kept_traffic()
        self.policy = self._told.over(self._configured)
        self.routes: Routes[ServedVersion] = Routes(
            name, labels={**self._configured.labels, **self._kept_labels}, traffic=self._traffic(split, out)
        )

    @property
    def ready(self) -> bool:
        return bool(self.routes.served)

    @property
    def refused(self) -> str:
        """Why nothing of it is served, as far as anybody knows: its newest version that was refused, and the reason. ""
        while one is served, or one is loaded that was never refused."""
        return self.routes.refused

    @property
    def labels(self) -> Mapping[str, int]:
        return self.routes.labels

    @property
    def served(self) -> Mapping[int, ServedVersion]:
        """Loaded versions; the largest is the default."""
        return self.routes.served

    def status(self) -> list[VersionStatus]:
        """Every version known, newest first."""
        return self.routes.status()

    def pick(self, version: int | None = None, label: str | None = None) -> ServedVersion:
        """See Routes.pick."""
        return self.routes.pick(version, label)

    def tell(self, status: VersionStatus) -> None:
        """Makes the state of a version that is not served known; waits for nobody who changes the model."""
        self._publish(
            lambda routes: (
                {} if status.version in routes.served else {"states": {**routes.states, status.version: status}}
            )
        )

    def set_policy(self, changes: Any) -> None:
        """Sets keys of the policy, or takes back, where they are None, what was set; kept across restarts. Versions
        that it asks for are loaded at the next poll(). Raises BadInput, NotReady."""
        if isinstance(changes, dict) and "labels" in changes:
            raise BadInput("policy.labels: labels are set one by one")
        with self._routing:
            told = self._told.changed(changes, "policy")
            policy, before = told.over(self._configured), self.policy
            self.policy = policy
            try:
                traffic = self._traffic(self.routes.traffic.split, self.routes.traffic.out)
                self._keep(told, traffic)
            except BaseException:
                self.policy = before
                raise
            self._told = told
            self.routes = replace(self.routes, traffic=traffic)
        # What was kept has changed the model's folder: the next poll() looks at its versions.
        self._changed()

    def eject(self, number: int, reason: str) -> None:
        """Takes a version out: it answers only who asks for it by number or label, until readmit(); kept across
        restarts where the repository can be written."""
        with self._routing:
            out = {**self.routes.traffic.out, number: EjectedVersion(reason, self._clock.unix_s())}
            traffic = replace(self.routes.traffic, out=out)
            self.routes = replace(self.routes, traffic=traffic)
            try:
                self._keep(self._told, traffic)
            except (NotReady, SigningKeyRequired) as error:
                log.warning("%s version %d is out, but only until a restart: %s", self.name, number, error)
        self._changed()

    def readmit(self, number: int) -> None:
        """Gives a version that was taken out its share again; raises NotFound."""
        with self._routing:
            if number not in self.routes.traffic.out:
                raise NotFound(f"version {number} of model {self.name!r} has not been taken out")
            out = {v: o for v, o in self.routes.traffic.out.items() if v != number}
            traffic = replace(self.routes.traffic, out=out)
            self._keep(self._told, traffic)
            self.routes = replace(self.routes, traffic=traffic)
        self._changed()

    def _publish(self, changes: Callable[[Routes[ServedVersion]], Mapping[str, Any]]) -> None:
        """Replaces the routes, and tells whoever answers by them. changes: of the routes that there are then."""
        with self._routing:
            self.routes = replace(self.routes, **changes(self.routes))
        self._changed()

    def _traffic(self, split: TrafficSplit | None, out: Mapping[int, EjectedVersion]) -> Traffic:
        """What the policy comes to. split: as it was: its segments stay where the weights do."""
        policy, salt = self.policy, xxhash.xxh3_64_intdigest(self.name.encode(), self.policy.split_salt)
        if not policy.split:
            split = None
        elif split is None or split.salt != salt:
            split = TrafficSplit.of(policy.split, salt)
        else:
            split = split.reweighted(policy.split)
        return Traffic(split, policy.sticky_input, policy.shadow, policy.shadow_share, out, policy.limits)

    def _kept_traffic(self) -> tuple[ModelPolicy, TrafficSplit | None, dict[int, EjectedVersion]]:
        """What the repository has kept; nothing where it is not ours."""
        kept = self._repository.traffic(self.name)
        try:
            told = ModelPolicy.parse(kept.get("policy", {}), "policy")
            split = TrafficSplit.from_json(kept["split"]) if kept.get("split") else None
            out = {
                int(version): EjectedVersion(str(reason), float(at))
                for version, (reason, at) in kept.get("out", {}).items()
            }
        except (FreshetError, ValueError, TypeError, AttributeError) as error:
            log.error("what was kept of the traffic of %s cannot be read: %s", self.name, error)
            return ModelPolicy(), None, {}
        return told, split, out

    def _keep(self, told: ModelPolicy, traffic: Traffic) -> None:
        document = traffic.to_json()
        kept = {"policy": told.to_json(), "split": document["split"], "out": document["out"]}
        self._repository.keep_traffic(self.name, kept)
