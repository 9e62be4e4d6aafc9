"""Report on the user states of a model's versions, for the admin API and its console."""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK
from freshet_serving.processor.package import FLOPS, USER
from freshet_serving.processor.versions.erasure import user_inputs
from freshet_serving.processor.versions.routes import find


def user_state_report(host: Any, model: str) -> dict[str, Any]:
    """Return what became of looks for states, by version; no versions where none keeps states.

    Args:
        host: The host (processor.versions.host).
        model: Name of the model.

    Raises:
        NotFound: There is no such model.
    """
    served = find(host.catalogue, model).routes.served
    return {"model": model, "versions": [one for _, v in sorted(served.items()) if (one := _of_version(host, v))]}


def _of_version(host: Any, version: Any) -> dict[str, Any] | None:
    figures, manifest = by_name(host.counted(version), BLOCK), version.manifest
    if not figures:
        return None
    hits, misses = figures["hits"], {n.partition(".")[2]: v for n, v in figures.items() if n.startswith("misses.")}
    looks = hits + sum(misses.values())
    # Tools may write anything into notes. Of a version with parts for shorter histories this is the longest one's.
    known = manifest.notes.get(FLOPS)
    counted = known.get(USER) if isinstance(known, dict) else None
    flops = counted if isinstance(counted, int) else 0
    return {
        "version": manifest.version,
        "generation": str(version.generation),
        "looks": looks,
        "hit_rate": hits / looks if looks else None,
        "mean_age_s": figures["hit_age_s"] / hits if hits else None,
        "mean_look_s": figures["look_s"] / looks if looks else None,
        "misses": misses,
        "user_flops": flops,
        "saved_flops": hits * flops,
        "user_inputs": user_inputs(manifest),
        "counters": figures,
    }
