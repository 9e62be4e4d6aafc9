"""Format the report of an import as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from freshet_serving.compiler.imports.boundary import boundary_of
from freshet_serving.compiler.imports.import_report import described_pair, import_report
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import DEFAULT_SIGNATURE, Manifest
from freshet_serving.processor.repository import GRAPH, MANIFEST, VersionReader

SIDES = {
    "tables": "replaced by table lookups and the engine's own transforms",
    "stage": "run by the stage's own library on the CPU, once a request",
    "dense": "compiled: the dense graph",
}


def report_of(source: Path, signature: str) -> dict[str, Any]:
    """Return the report of a package's cut, from its manifest, or of a model's file or folder, by opening it."""
    if (source / MANIFEST).is_file():
        manifest = VersionReader(source.resolve()).manifest
        report = manifest.notes.get("import")
        return report if isinstance(report, dict) else _of_package(source, manifest)
    from freshet_serving.compiler.imports.importing import ImportOptions, analyse

    return analyse(source, ImportOptions(signature))


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Format a report: operations by side with the reasons, tensors handed over, sizes and FLOPs."""
    sides, boundary = report["sides"], report["boundary"]
    yield f"{report['source']}, signature {report['signature']}"
    for note in report["notes"]:
        yield f"  note: {note}"
    for side, meaning in SIDES.items():
        counts = sides[side]
        yield f"  {side}: {sum(counts.values())} operations, {meaning}"
        if counts:
            yield "    " + ", ".join(f"{op} {n}" if n > 1 else op for op, n in counts.items())
    reasons = {op: why for op, why in report["reasons"].items() if not why.startswith("feeds ")}
    if reasons:
        yield "  why not in the dense graph"
        for op, why in reasons.items():
            yield f"    {op}: {why}"
    # Packages of earlier versions lack this field.
    if report.get("staged"):
        yield "  why the stage computes it"
        for staged in report["staged"]:
            yield f"    {staged['what']} (from {staged['inputs']}): {staged['why']}"
    yield f"  handed over: {len(boundary)} tensors, {boundary[-1]['columns'][1] if boundary else 0} columns"
    for pair in boundary:
        first, last = pair["columns"]
        shape = ", ".join("n" if d == -1 else str(d) for d in pair["shape"])
        yield (
            f"    {pair['sender']} (from {pair['input']}) -> x[:, {first}:{last}]: "
            f"{pair['tensor']} {pair['dtype']} [{shape}]"
        )
    nbytes = report["nbytes"]
    yield f"  {report['flops']:,} FLOPs a row; {nbytes['weights']:,} bytes of weights, {nbytes['tables']:,} of tables"


def _of_package(source: Path, manifest: Manifest) -> dict[str, Any]:
    from freshet_serving.compiler.dense.dense_graph import DenseGraph
    from freshet_serving.compiler.passes.flops import dense_flops

    reader = VersionReader(source.resolve())
    if not (source / GRAPH).is_dir():
        raise BadInput("graph: the version has no graph/")
    graph = DenseGraph.load(source / GRAPH, reader.dense())
    nodes = graph.concrete.graph.as_graph_def().node
    counts = Counter(node.op for node in nodes if node.op not in ("Placeholder", "NoOp", "Identity"))
    features = {f.name: f for f in manifest.features}
    report = import_report(
        f"package, {manifest.arch}",
        DEFAULT_SIGNATURE,
        [],
        {"dense": dict(sorted(counts.items())), "stage": {}, "tables": {}},
        [described_pair(p, features[p.tensor].kind, [features[p.tensor]]) for p in boundary_of(manifest)],
        graph.weights.values(),
        (),
        flops=dense_flops(graph),
    )
    tables = (file.nbytes for name, file in manifest.files.items() if name.startswith("tables/"))
    report["nbytes"]["tables"] = sum(tables)
    return report
