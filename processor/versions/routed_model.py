"""A model as requests see it: its routes, and the policy that they follow from.

Requests only read `routes`, which is replaced as a whole, and every process that answers by them is notified at once.
Traffic (the split, the shadow, ejected versions) has its own lock, held only while `routes` is replaced: a bad canary
is ejected at once, even while another version takes minutes to load.

Invariants of labels
- `labels` is what the repository's file says, completed by the configuration. Every server of the repository adopts a
  change when it chooses versions again, which a change of the model's folder makes it do: an idle poll costs nothing.
- A change reads the file again and writes what it changes alone, so another server's labels are not written back.
- `routes.labels` follows `labels`, but a label leaves a served version only for a served one. One that names a version
  which is not served, and had none, answers with that version's state.
- A damaged, untrusted or (with its folder) missing file changes nothing.
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
    """Routes and policy of one model. processor.versions.model loads its versions."""

    def __init__(
        self,
        name: str,
        repository: Repository,
        clock: Clock,
        changed: Callable[[], None],
        policy: ModelPolicy | None,
    ) -> None:
        """Read labels and traffic settings from the repository, which override the configured policy."""
        self.name = name
        self._repository, self._clock, self._changed = repository, clock, changed
        self._routing = threading.Lock()
        self._configured = policy or ModelPolicy()
        self._kept_labels: Mapping[str, int] = repository.labels(name)
        self._told, split, out = self._kept_traffic()
        self.policy = self._told.over(self._configured)
        self._unread_input = ""
        self.routes: Routes[ServedVersion] = Routes(name, labels=self.labels, traffic=self._traffic(split, out))

    @property
    def labels(self) -> Mapping[str, int]:
        """The version that each label is to point to; `routes` has those that it points to."""
        return {**self._configured.labels, **self._kept_labels}

    @property
    def labelled(self) -> set[int]:
        """Versions that labels point to, or are to point to."""
        return {*self.labels.values(), *self.routes.labels.values()}

    def adopt_labels(self, kept: Mapping[str, int]) -> None:
        """Follow the labels that the repository keeps; the next choice loads their versions."""
        if kept != self._kept_labels:
            self._kept_labels = kept
            self._publish(lambda _: {})

    def pick(self, version: int | None = None, label: str | None = None) -> ServedVersion:
        """Return the target of a version or label, or the default, without splitting traffic (Routes.pick)."""
        return self.routes.pick(version, label)

    def tell(self, status: VersionStatus) -> None:
        """Publish the state of a version that is not served, without waiting for a change in progress."""
        self._publish(
            lambda routes: (
                {} if status.version in routes.served else {"states": {**routes.states, status.version: status}}
            )
        )

    def set_policy(self, changes: Any) -> None:
        """Set keys of the policy, or unset those given as None; kept across restarts. Raise BadInput, NotReady.

        Versions that it adds are loaded at the next poll().
        """
        if isinstance(changes, dict) and "labels" in changes:
            raise BadInput("policy.labels: cannot be changed here; set each label by itself")
        with self._routing:
            overrides = self._told.changed(changes, "policy")
            policy, before = overrides.over(self._configured), self.policy
            policy.check_extensions("policy")
            self.policy = policy
            try:
                now = self.routes.traffic
                traffic = replace(self._traffic(now.split, now.out), barred=now.barred)
                self._keep(overrides, traffic)
            except BaseException:
                self.policy = before
                raise
            self._told = overrides
            self.routes = replace(self.routes, traffic=traffic)
            self._warn_of_unread_input()
        # Saving the policy has changed the model's folder, so the next poll() checks its versions.
        self._changed()

    def eject(self, number: int, reason: str) -> None:
        """Eject a version: until readmit() it answers only requests that name its number or label.

        Kept across restarts if the repository is writable. Operators see the reason.
        """
        with self._routing:
            out = {**self.routes.traffic.out, number: EjectedVersion(reason, self._clock.unix_s())}
            self.routes = replace(self.routes, traffic=replace(self.routes.traffic, out=out))
        # Before it is kept, because the repository may be slow.
        self._changed()
        with self._routing:
            try:
                self._keep(self._told, self.routes.traffic)
            except (NotReady, SigningKeyRequired) as error:
                log.warning("%s version %d is excluded from traffic only until a restart: %s", self.name, number, error)

    def readmit(self, number: int) -> None:
        """Give an ejected version its traffic share back; raise NotFound."""
        with self._routing:
            if number not in self.routes.traffic.out:
                raise NotFound(f"version {number} of model {self.name!r} is not excluded from traffic")
            out = {v: o for v, o in self.routes.traffic.out.items() if v != number}
            traffic = replace(self.routes.traffic, out=out)
            self._keep(self._told, traffic)
            self.routes = replace(self.routes, traffic=traffic)
        self._changed()

    def _publish(self, changes: Callable[[Routes[ServedVersion]], Mapping[str, Any]]) -> None:
        """Replace fields of the routes (`changes` returns them) and notify the processes that answer by them."""
        with self._routing:
            routes, before = replace(self.routes, **changes(self.routes)), self.routes.labels
            labels = {
                label: before[label] if number not in routes.served and before.get(label) in routes.served else number
                for label, number in self.labels.items()
            }
            self.routes = replace(routes, labels=labels)
            self._warn_of_unread_input()
        self._changed()

    def _warn_of_unread_input(self) -> None:
        """Log once that no served version reads the policy's sticky input: its users would change sides unnoticed."""
        routes, name = self.routes, self.policy.sticky_input
        read = {entry.name for served in routes.served.values() for entry in served.manifest.inputs}
        unread = name if routes.traffic.split is not None and read and name not in read else ""
        if unread and unread != self._unread_input:
            log.warning(
                "%s policy.sticky_input: expected one of the inputs %s, got %r: requests without x-sticky-key are "
                "split at random",
                self.name,
                ", ".join(sorted(read))[:200],
                unread,
            )
        self._unread_input = unread

    def _traffic(self, split: TrafficSplit | None, out: Mapping[int, EjectedVersion]) -> Traffic:
        """Return the policy's traffic settings; segments of the former split stay where the weights do."""
        policy, salt = self.policy, xxhash.xxh3_64_intdigest(self.name.encode(), self.policy.split_salt)
        if not policy.split:
            split = None
        elif split is None or split.salt != salt:
            split = TrafficSplit.of(policy.split, salt)
        else:
            split = split.reweighted(policy.split)
        return Traffic(
            split, policy.sticky_input, policy.shadow, policy.shadow_share, out, policy.limits, users=policy.user_state
        )

    def _kept_traffic(self) -> tuple[ModelPolicy, TrafficSplit | None, dict[int, EjectedVersion]]:
        """Return the traffic settings stored in the repository; nothing if they cannot be parsed."""
        stored = self._repository.traffic(self.name)
        try:
            overrides = ModelPolicy.parse(stored.get("policy", {}), "policy")
            split = TrafficSplit.from_json(stored["split"]) if stored.get("split") else None
            out = {
                int(version): EjectedVersion(str(reason), float(at))
                for version, (reason, at) in stored.get("out", {}).items()
            }
        except (FreshetError, ValueError, TypeError, AttributeError) as error:
            log.error("cannot read the saved traffic policy of %s: %s", self.name, error)
            return ModelPolicy(), None, {}
        return overrides, split, out

    def _keep(self, overrides: ModelPolicy, traffic: Traffic) -> None:
        document = traffic.to_json()
        settings = {"policy": overrides.to_json(), "split": document["split"], "out": document["out"]}
        self._repository.keep_traffic(self.name, settings)
