"""Reports about a host's models: snapshots for metrics, and the state of the models for people.

Functions over the catalogue (processor.versions.host) and the host's counts, from all its processes. They read objects
that are replaced whole and take no lock, so a report delays no change and no request.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.tables.remote_rows import REMOTE_ROWS
from freshet_serving.processor.versions.host import ModelHost
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.routes import find
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import ModelStats, VersionStats


def model_stats(host: ModelHost) -> list[ModelStats]:
    """Return a snapshot of each model that serves."""
    snapshots = []
    for name, model in sorted(host.catalogue.items()):
        if not model.routes.served:
            continue
        version = model.pick()
        lookups, misses = host.lookups(version).sum(axis=0).tolist()
        snapshots.append(
            ModelStats(
                model=name,
                generation=version.generation,
                delta_count=version.delta_count,
                delta_rows=version.delta_rows,
                last_apply_ms=version.last_apply_ms,
                last_freshness_s=version.last_freshness_s,
                published_at=version.published_at,
                event_time=version.event_time[1] if version.event_time else None,
                lookups=lookups,
                misses=misses,
                delta_nbytes=version.delta_nbytes,
                deltas={"apply": version.apply_s, "publication": version.age_s, "event": version.event_age_s},
                counted=host.counted(version),
                tiers={name: tally for name, t in version.tables.items() if (tally := t.tier) is not None},
                derived_lag=version.derived_lag,
            )
        )
    return snapshots


def version_stats(host: ModelHost) -> list[VersionStats]:
    """Return a snapshot of each loaded version."""
    snapshots = []
    for name, model in sorted(host.catalogue.items()):
        routes = model.routes
        shares = routes.shares()
        for number, version in sorted(routes.served.items()):
            scores, drift = model.judges.trend(number)
            counted = host.lookups(version).tolist()
            out = routes.traffic.out.get(number)
            snapshots.append(
                VersionStats(
                    model=name,
                    version=number,
                    generation=version.generation,
                    sketch=host.sketch(version),
                    tables={t.name: (c[0], c[1]) for t, c in zip(version.manifest.tables, counted)},
                    outputs=tuple(o.name for o in version.manifest.outputs),
                    scores=scores,
                    drift=drift,
                    labels=tuple(sorted(label for label, v in routes.labels.items() if v == number)),
                    share=shares.get(number, 0.0),
                    out=out.reason if out else "",
                    chain=model.chain(number),
                    staleness_s=model.staleness_s(number),
                    computes=dict(version.replicas.computes),
                )
            )
    return snapshots


def describe(host: ModelHost, now_s: float) -> dict[str, Any]:
    """Return ModelHost.info()'s report of the models, JSON-able; now_s: Unix seconds."""
    models = {name: _describe_model(host, model, now_s) for name, model in sorted(host.catalogue.items())}
    for name, standing in host.trainers.standings().items():
        if name in models:
            models[name]["trainer"] = standing.describe()
    return {"ready": host.ready, "reachable": host.reachable, "models": models}


def describe_tables(host: ModelHost, model: str, version: int | None = None) -> dict[str, Any]:
    """Return the tables of a served version, JSON-able: rows, bytes, and lookups by whether they found a row.

    By default of the version that represents the model. Raises NotFound, or NotReady if it is not served yet.
    """
    served = find(host.catalogue, model).pick(version)
    return {
        "model": model,
        "version": served.manifest.version,
        "generation": str(served.generation),
        "dense_nbytes": sum(array.nbytes for array in served.dense.values()),
        "tables": [
            {
                "name": entry.name,
                "rows": table.rows,
                "dim": entry.dim,
                "dtype": entry.dtype,
                "nbytes": table.nbytes,
                "lookups": lookups,
                "defaults": defaults,
                "tier": asdict(table.tier) if table.tier else None,
            }
            for (entry, table), (lookups, defaults) in zip(
                ((t, served.tables[t.name]) for t in served.manifest.tables), host.lookups(served).tolist()
            )
        ],
        "remote": by_name(host.counted(served), REMOTE_ROWS) or None,
    }


def _describe_model(host: ModelHost, model: ServedModel, now_s: float) -> dict[str, Any]:
    served = {}
    for number, version in sorted(model.routes.served.items()):
        served[str(number)] = {
            "generation": str(version.generation),
            "digest": version.digest,
            "staleness_s": round(model.staleness_s(number), 3),
            "chain": asdict(chain) if (chain := model.chain(number)) else None,
            "published_at": version.published_at,
            "age_s": max(0.0, now_s - version.published_at),
            "event_time": version.event_time[1] if version.event_time else None,
            "last_freshness_s": version.last_freshness_s,
            "last_apply_ms": version.last_apply_ms,
            "delta_count": version.delta_count,
            "delta_rows": version.delta_rows,
            "memory": version.memory(),
            "tables": {name: {"rows": t.rows, "dim": t.spec.dim} for name, t in version.tables.items()},
            "remote": by_name(host.counted(version), REMOTE_ROWS) or None,
            "buckets": {str(b): round(s * 1e6, 1) for b, s in version.replicas.cost.items()},
            "computes": {str(b): backend for b, backend in version.replicas.computes.items()},
            "choices": _choices(version),
        }
    generation = str(model.pick().generation) if model.routes.served else None
    held = {str(number): why for number, why in sorted(model.decisions.held.items())}
    routes = model.routes
    return {
        "generation": generation,
        "trainer": None,
        "labels": dict(model.routes.labels),
        "policy": model.policy.to_json(),
        "shares": {str(version): share for version, share in sorted(routes.shares().items())},
        "shadow": routes.shadow.manifest.version if routes.shadow else None,
        "out": {str(version): asdict(out) for version, out in sorted(routes.traffic.out.items())},
        "versions": [asdict(s) for s in model.routes.status()],
        "gate": {"held": held, "verdicts": model.judges.verdicts()},
        "served": served,
    }


def _choices(version: ServedVersion) -> list[dict[str, Any]]:
    """Return what the server chose by cost for the version (processor.running.choices)."""
    splits = version.replicas.splits
    if not splits:
        return []
    # Loaded where there is something to describe.
    from freshet_serving.processor.running.choices import split_choices

    return [choice.to_json() for choice in split_choices(splits)]
