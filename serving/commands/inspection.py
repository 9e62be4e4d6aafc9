"""`freshet inspect`, and what it and `freshet delta list` print about a repository on disk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from processor.errors import BadInput, FreshetError, NotFound
from processor.package.delta import read_delta
from processor.package.manifest import WHOLE, ExecutableEntry, Input
from processor.package.repository import Repository
from serving.commands.import_command import draw


def inspect(
    model: Annotated[str | None, typer.Argument(help="A model of the repository; all of them when left out.")] = None,
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")] = "",
    version: Annotated[int | None, typer.Option(help="A version; the newest when left out.")] = None,
    verify: Annotated[bool, typer.Option(help="Also check size and checksum of every file.")] = False,
    graph: Annotated[
        Path | None, typer.Option(help="How this version's folder, SavedModel, .keras or .onnx file is cut.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --graph: an SVG file to draw the cut into.")] = None,
    signature: Annotated[str, typer.Option(help="With --graph: which signature of a SavedModel.")] = "serving_default",
) -> None:
    """Describes models of a repository from their manifests, without serving them; or with --graph how one is cut."""
    if graph is not None:
        draw(graph, out, signature)
        return
    if not repository:
        raise BadInput("repository: --repository wanted, or --graph")
    describe_repository(repository, model, version, verify)


def describe_repository(root: str, model: str | None, version: int | None, verify: bool) -> None:
    """Prints one model, or all of them; raises NotFound, or Corrupt when a file fails its check."""
    repository = Repository(root)
    names = [model] if model is not None else [m for m in repository.models() if repository.versions(m)]
    if not names:
        raise NotFound("repository: no model with a complete version")
    for name in names:
        _describe(repository, name, version, verify)


def describe_deltas(root: str, model: str, version: int | None) -> None:
    """Prints every delta of a version, verified; a broken one is named and the rest still listed."""
    repository = Repository(root)
    number = repository.version(model, version).manifest.version
    table = Table("generation", "parent", "rows", "removed", "dense", "events", "published", "bytes")
    for file in repository.deltas(model, number):
        try:
            delta = read_delta(file.path)
        except (FreshetError, OSError) as error:
            table.add_row(f"{number}.{file.step}", escape(str(error)[:120]))
            continue
        table.add_row(
            f"{number}.{delta.step}",
            f"{number}.{delta.parent_step}",
            f"{delta.rows:,}",
            f"{delta.removed:,}",
            str(len(delta.dense)),
            f"{delta.events:,}",
            _when(delta.published_at),
            f"{file.path.stat().st_size:,}",
        )
    Console().print(table)


def _describe(repository: Repository, model: str, version: int | None, verify: bool) -> None:
    files = repository.version(model, version)
    if verify:
        files.verify()
    manifest = files.manifest
    number = manifest.version
    nbytes = sum(f.nbytes for f in manifest.files.values())
    deltas = repository.deltas(model, number)
    console = Console()
    console.print(f"[bold]{model}[/bold] version {number} of {', '.join(map(str, repository.versions(model)))}")
    console.print(
        f"  {escape(manifest.arch)}, created {_when(manifest.created_at)}, "
        f"{nbytes:,} bytes in {len(manifest.files)} files"
    )
    console.print(f"  {len(deltas)} deltas" + (f", the newest {number}.{deltas[-1].step}" if deltas else ""))
    for title, lines in (
        ("inputs", [f"{i.name}: {_shape(i)}" for i in manifest.inputs]),
        ("outputs", [f"{o.name}: float32 [n, {o.columns}]" for o in manifest.outputs]),
        ("tables", [f"{t.name}: {t.rows:,} rows of {t.dim} {t.dtype}" for t in manifest.tables]),
        ("executables", [f"{e.backend}-{e.target} for {e.bucket} rows{_part(e)}" for e in manifest.executables]),
    ):
        console.print(f"  {title}")
        for line in lines or ["none"]:
            console.print(f"    {escape(line)}", highlight=False)
    if verify:
        console.print("  every file matches its checksum")


def _part(executable: ExecutableEntry) -> str:
    return "" if executable.role == WHOLE else f", the {executable.role}'s part"


def _shape(spec: Input) -> str:
    if spec.ragged:
        return f"{spec.dtype} [n, any]"
    return f"{spec.dtype} [n, {spec.columns}]" if spec.columns else f"{spec.dtype} [n]"


def _when(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
