"""Perform operations on the whole server that clients request through a data port.

These are statistics, and with --model-control also explicit loading, unloading and a new configuration of models.

Requests of the data ports come from anywhere, so changes are refused unless they are turned on; if the admin port
requires a token, they must carry the same one. A client names a version, never a path: a configuration's base_path must
be the model's existing folder.

A new configuration is checked as a whole before anything changes; then versions are loaded, labels replaced, and only
then versions unloaded, so that every model has an answering version throughout. As in TensorFlow Serving, its labels
are all that its models have, except those that this server's own configuration or traffic needs. Its version policy
becomes the model's (processor.versions.policy) and decides later which new versions are loaded.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Any

from freshet_serving.processor.errors import BadInput, FreshetError, NotFound
from freshet_serving.processor.repository import Repository, check_name
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.policy import VersionPolicy
from freshet_serving.processor.versions.routes import AVAILABLE
from freshet_serving.processor.watching import GroupStats, SessionStats
from freshet_serving.serving.access.access_guard import Forbidden, Unauthenticated
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.telemetry.triton_statistics import Snapshot, document

log = logging.getLogger("freshet.control")

EXPLICIT = "explicit"
MAX_MODELS = 1024
MAX_LATEST = 999_999

Document = dict[str, Any]
ControlHandler = Callable[[str, Document], Document]
"""(operation, its arguments) -> its result, all JSON values; blocks. Raises FreshetError."""


class ModelControlAuthorizer:
    """Decides whether a client of a data port may change what is served."""

    def __init__(self, mode: str = "none", token: str = "") -> None:
        self.open = mode == EXPLICIT
        self._token = token.encode()

    def authorize(self, authorization: bytes | None) -> None:
        """Raise Forbidden if model control is turned off, Unauthenticated if the token is missing or wrong."""
        if not self.open:
            raise Forbidden("model control: disabled on this port; --model-control explicit enables it")
        scheme, _, token = (authorization or b"").partition(b" ")
        if self._token and not (scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)):
            raise Unauthenticated


def no_model_control(operation: str, arguments: Document) -> Document:
    """Raise Forbidden: the ControlHandler of a process without models to load."""
    raise Forbidden(f"{operation}: not supported by this server")


class ModelControl:
    """The ControlHandler of the process that owns the models; `groups` are sections of the configuration."""

    def __init__(
        self,
        host: Callable[[], ModelHost],
        served: Callable[[], Snapshot],
        repository: Callable[[], Repository],
        groups: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._host, self._served, self._repository = host, served, repository
        self._group_of = {m: name for name, group in groups.items() for m in group.get("models") or [name]}
        self._acts = {"load": self._load, "unload": self._unload, "reload": self._reload}

    def __call__(self, operation: str, arguments: Document) -> Document:
        """Perform an operation, load, unload, reload or statistics, and log it."""
        if operation == "statistics":
            return self._statistics(arguments)
        try:
            self._acts[operation](arguments)
        except FreshetError as error:
            log.warning("%s: refused: %s", operation, show(str(error)))
            raise
        log.info("%s %s: done", operation, show(str(arguments.get("model", ""))))
        return {}

    def _load(self, arguments: Document) -> None:
        model = arguments["model"]
        self._host().status(model)
        versions = self._versions(model)
        if not versions:
            raise NotFound(f"model {model[:64]!r} has no version in the repository")
        self._host().load(model, max(versions), by_hand=False)

    def _unload(self, arguments: Document) -> None:
        host, model = self._host(), arguments["model"]
        for version in _available(host, model):
            host.unload(model, version)

    def _reload(self, arguments: Document) -> None:
        """Apply a configuration: {"models": [{name, base_path, policy, count, versions, labels}]}."""
        host, chosen, policies = self._host(), {}, {}
        for config in arguments["models"]:
            name = config["name"]
            if name in chosen:
                raise BadInput(f"model_config_list: {show(name)} occurs more than once")
            host.status(name)
            self._check_path(name, config["base_path"])
            chosen[name] = _chosen(config, self._versions(name))
            policies[name] = _policy(config)
        for config in arguments["models"]:
            name = config["name"]
            served = _available(host, name)
            for version in chosen[name]:
                if version not in served:
                    host.load(name, version, by_hand=False)
            host.replace_labels(name, config["labels"])
            host.set_policy(name, {"versions": policies[name]})
        for name in host.models():
            for version in _available(host, name):
                if version not in chosen.get(name, ()):
                    host.unload(name, version)

    def _statistics(self, arguments: Document) -> Document:
        """Return the statistics for {"model": name or "", "version": number or None}."""
        host, served = self._host(), self._served()
        groups = host.group_stats()
        any_group = groups.get("default") or next(iter(groups.values()), GroupStats(0, 0, SessionStats()))
        entries = []
        for model in [arguments["model"]] if arguments["model"] else host.models():
            group = groups.get(self._group_of.get(model, ""), any_group)
            versions = [v for v in _available(host, model) if arguments["version"] in (None, v)]
            if arguments["version"] is not None and not versions:
                raise NotFound(f"version {arguments['version']} of model {model[:64]!r} is not loaded")
            entries += [document(model, version, served, group) for version in versions]
        return {"model_stats": entries}

    def _versions(self, model: str) -> list[int]:
        return list(self._repository().versions(model))

    def _check_path(self, name: str, base_path: str) -> None:
        root = self._repository().root
        if "\0" in base_path or (root / base_path).resolve() != (root / name).resolve():
            raise BadInput(f"model_config_list: base_path of {show(name)}: expected the model's own folder")


def _available(host: ModelHost, model: str) -> list[int]:
    return sorted(s.version for s in host.status(model) if s.state == AVAILABLE)


def _policy(config: Document) -> str | list[int]:
    """Return a configuration's policy in the notation of processor.versions.policy; raise BadInput."""
    latest = f"latest:{min(config['count'], MAX_LATEST)}"
    policy: str | list[int] = {"latest": latest, "all": "all"}.get(config["policy"]) or config["versions"]
    return VersionPolicy.parse(policy, "model_version_policy").spelled


def _chosen(config: Document, existing: list[int]) -> list[int]:
    """Return the versions that a policy selects, newest last; raise NotFound if there are none."""
    name, policy = config["name"], config["policy"]
    if policy == "specific":
        missing = sorted(set(config["versions"]) - set(existing))
        if missing:
            raise NotFound(f"version {missing[0]} of model {name[:64]!r} is not in the repository")
        chosen = sorted(set(config["versions"]))
    else:
        chosen = sorted(existing) if policy == "all" else sorted(existing)[-config["count"] :]
    if not chosen:
        raise NotFound(f"model {name[:64]!r} has no version to serve")
    for label, version in config["labels"].items():
        check_name(label, "version_labels")
        if version not in chosen:
            raise BadInput(f"version_labels: {show(label)}: expected one of the model's versions, got {version}")
    return chosen
