"""Report on the user states of a model's versions, for the admin API and its console."""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK, flops_of
from freshet_serving.processor.extensions.user_state.user_counters import BLOCK as KEPT_USERS
from freshet_serving.processor.features.user_bounds import FLOAT16, FLOAT32
from freshet_serving.processor.package import USER
from freshet_serving.processor.versions.erasure import user_inputs
from freshet_serving.processor.versions.routes import find


def user_state_report(host: Any, model: str) -> dict[str, Any]:
    """Return what is kept of users, and what became of looks for states, by version.

    "users" is None, and there are no versions, where nothing is kept.
    """
    model_found = find(host.catalogue, model)
    served, users = model_found.routes.served, model_found.routes.traffic.users
    dtype = FLOAT16 if users is not None and users.rounded else FLOAT32
    return {
        "model": model,
        # Each version has those of the model.
        "users": by_name(host.counted(model_found.pick(None)), KEPT_USERS) or None,
        "versions": [version for _, v in sorted(served.items()) if (version := _of_version(host, v, dtype))],
    }


def _of_version(host: Any, version: Any, dtype: str) -> dict[str, Any] | None:
    figures, manifest = by_name(host.counted(version), BLOCK), version.manifest
    if not figures:
        return None
    hits, misses = figures["hits"], {n.partition(".")[2]: v for n, v in figures.items() if n.startswith("misses.")}
    looks = hits + sum(misses.values())
    return {
        "version": manifest.version,
        "generation": str(version.generation),
        "dtype": dtype,
        "looks": looks,
        "hit_rate": hits / looks if looks else None,
        "mean_age_s": figures["hit_age_s"] / hits if hits else None,
        "mean_look_s": figures["look_s"] / looks if looks else None,
        "misses": misses,
        # Of a version with parts for shorter histories this is the longest one's.
        "user_flops": flops_of(manifest, USER),
        "saved_flops": figures["saved_flops"],
        "user_inputs": user_inputs(manifest),
        "counters": figures,
    }
