"""Implement `freshet inspect`, and print what it and `freshet delta list` show about a repository on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from freshet_serving.compiler.progress import output
from freshet_serving.processor.errors import BadInput, Diverged, FreshetError, NotFound, printable
from freshet_serving.processor.package import (
    SCORE,
    WHOLE,
    Delta,
    EntityEntry,
    ExecutableEntry,
    Input,
    Manifest,
    Output,
    column_specs,
    read_delta,
    section_lines,
)
from freshet_serving.processor.ports import ENGINE
from freshet_serving.processor.repository import (
    DELTA,
    DELTAS,
    REPAIR,
    ChainRecord,
    ChangeLog,
    Keyring,
    Repository,
    check_version,
    open_repository,
    unrecorded_deltas,
)
from freshet_serving.serving.commands.completion import models
from freshet_serving.serving.commands.graph_description import subgraph_lines, work_lines
from freshet_serving.serving.commands.import_command import draw


def inspect(
    model: Annotated[str | None, typer.Argument(help="A model of the repository. [all]", autocompletion=models)] = None,
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")] = "",
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    verify: Annotated[bool, typer.Option(help="Also verify the size and checksum of every file.")] = False,
    trust: Annotated[
        list[Path] | None,
        typer.Option(help="Trusted public key: verify that all files and records are signed; exit with 1 if not."),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="Show the partition of this version's folder, SavedModel, .keras or .onnx file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="SVG file of the partition (--graph), or HTML file of the tables (--tables).")
    ] = None,
    signature: Annotated[str, typer.Option(help="With --graph: signature of a SavedModel.")] = "serving_default",
    tables: Annotated[
        bool, typer.Option("--tables", help="Describe the tables of MODEL (docs/how-to/table-memory.md).")
    ] = False,
    generation: Annotated[str, typer.Option(help="With --tables: generation, such as 3.17. [newest]")] = "",
    since: Annotated[str, typer.Option(help="With --tables: generation to compare with. [step 0]")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Write versions, executables and choices of each model as JSON.")
    ] = False,
) -> None:
    """Describes models of a repository without serving them; with --tables the contents of their tables, with --graph
    the partition of their graph."""
    if as_json and (tables or trust or verify or graph is not None):
        raise BadInput("--json: expected no --tables, --trust, --verify or --graph beside it")
    if not tables and (generation or since):
        raise BadInput("--generation, --since: require --tables")
    if graph is not None:
        draw(graph, out, signature)
        return
    if not repository:
        raise BadInput("repository: expected --repository or --graph, got neither")
    if tables:
        # Imported only here, because it needs the training component.
        from freshet_serving.serving.commands.table_analysis import inspect_tables

        if model is None:
            raise BadInput("--tables: expected the name of a model, got none")
        inspect_tables(repository, model, generation, since, out)
        return
    if trust:
        check_signed(repository, model, version, trust)
        return
    describe_repository(repository, model, version, verify, as_json)


def check_signed(root: str, model: str | None, version: int | None, trust: list[Path]) -> None:
    """Print which key signed each version; exit with 1 at the first file or record that no trusted key has signed.

    None for `model` or `version` checks all.
    """
    repository = open_repository(root).with_keys(Keyring.of(trust=trust))
    for name in [model] if model is not None else [m for m in repository.models() if repository.versions(m)]:
        for number in [version] if version is not None else repository.versions(name):
            try:
                reader = repository.version(name, number)
                records = check_version(reader).history.number
                repository.check_kept(name)
            except FreshetError as error:
                print(f"{name} {number}: {error}", file=sys.stderr)
                raise typer.Exit(1) from None
            manifest = reader.root_manifest
            files = len(manifest.files)
            print(f"{name} {number}: signed by key {manifest.key}: {files} files, {records} records")


def describe_repository(root: str, model: str | None, version: int | None, verify: bool, as_json: bool = False) -> None:
    """Describe the newest or given version of one model, or of all that can be read.

    Raises NotFound if there is no complete version; BadInput names the models that cannot be read.
    """
    repository = open_repository(root)
    names = [model] if model is not None else [m for m in repository.models() if repository.versions(m)]
    if not names:
        raise NotFound("repository: no model has a complete version")
    broken: list[str] = []
    described: dict[str, Any] = {}
    for name in names:
        try:
            if as_json:
                described[name] = _as_json(repository, name, version)
            else:
                _describe(repository, name, version, verify)
        except FreshetError as error:
            if model is not None:
                raise
            broken.append(f"{name}: {error}")
    if as_json:
        print(json.dumps(described, indent=1))
    if broken:
        raise BadInput("; ".join(broken))


def describe_deltas(root: str, model: str, version: int | None, trust: list[Path] | None = None) -> None:
    """Print a version's change log record by record, with verified deltas, and files that no record names.

    Damage is reported at its place, and the rest is still listed; a record that no key of `trust` has signed is damage.
    Writes nothing.
    """
    reader = open_repository(root).with_keys(Keyring.of(trust=trust or ())).version(model, version)
    change_log = ChangeLog(reader)
    trouble = ""
    try:
        change_log.look()
    except Diverged as error:
        trouble = printable(str(error))
    history = change_log.history
    line = {link.digest for link in history.back(history.head)}
    # A narrow terminal wraps numbers and words, but not dates or generations.
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("no.", "kind", "generation", "rows", "removed", "dense", "events", "at (UTC)", "bytes", ""):
        table.add_column(name, no_wrap=name in ("generation", "at (UTC)"), overflow="fold")
    for record in _taken(change_log):
        mark = "undone" if record.kind == DELTA and record.digest not in line else ""
        if record.kind == DELTA and history.gate is not None and record.step > history.gate.step and not mark:
            mark = "waits: held"
        # Nearly every record builds on the previous one.
        on_previous = record.parent_step in (record.step - 1, record.step)
        parent = "" if on_previous else f"on {record.version}.{record.parent_step}"
        where = [str(record.number), record.kind, f"{record.version}.{record.step}"]
        signed = f"key {record.key}" if record.key else ""
        nbytes = f"{record.nbytes:,}" if record.nbytes else ""
        if record.kind == DELTA:
            counts, problem = _counts(lambda: change_log.read_delta(history.links[record.digest]))  # noqa: B023
        else:
            counts, problem = ["", "", "", "", _date(record.at)], ""
        remarks = (problem, parent, mark, _set_aside(record), record.why, signed)
        notes = escape("; ".join(remark for remark in remarks if remark))
        table.add_row(*where, *counts, nbytes, notes)
    for bare in unrecorded_deltas(reader.folder):
        if f"{DELTAS}/{bare.path.name}" not in history.files:
            why = f"not served: step {bare.step} is used" if bare.step <= history.top else "no record yet"
            counts, problem = _counts(lambda: read_delta(bare.path))  # noqa: B023
            where = ["", "file", f"{reader.manifest.version}.{bare.step}"]
            notes = escape("; ".join(part for part in (problem, why) if part))
            table.add_row(*where, *counts, f"{bare.path.stat().st_size:,}", notes)
    console, at = output(), history.target
    console.print(table)
    served = f"{reader.manifest.version}.{at.step}"
    console.print(f"served: {served}, digest {at.digest}; the next step is {history.top + 1}", highlight=False)
    if history.gate is not None:
        console.print(f"HELD: {history.held or 'no reason given'}", markup=False, highlight=False)
        console.print(
            f"`freshet delta release {model}` serves the held deltas, `freshet delta reject {model}` undoes them",
            markup=False, highlight=False,
        )  # fmt: skip
    if trouble:
        console.print(f"DIVERGED: {trouble}", markup=False, highlight=False)
        console.print(
            f"`freshet delta repair {model}` shows which records to cut",
            markup=False, highlight=False,
        )  # fmt: skip
        if trust:
            raise typer.Exit(1)


def _taken(change_log: ChangeLog) -> Iterator[ChainRecord]:
    """Yield the accepted records, read again."""
    for record in change_log.records() if change_log.history.number else ():
        yield record
        if record.number >= change_log.history.number:
            return


def _set_aside(record: ChainRecord) -> str:
    return f"sets aside records {record.since} to {record.number - 1}" if record.kind == REPAIR else ""


def _counts(read: Callable[[], Delta]) -> tuple[list[str], str]:
    """Return a delta's counts and publication time, or else the problem with it."""
    try:
        delta = read()
    except (FreshetError, OSError) as error:
        return [""] * 5, str(error)[:120]
    counts = [f"{delta.rows:,}", f"{delta.removed:,}", str(len(delta.dense)), f"{delta.events:,}"]
    return [*counts, _date(delta.published_at)], ""


def _describe(repository: Repository, model: str, version: int | None, verify: bool) -> None:
    from freshet_serving.processor.running.choices import choice_lines, package_choices

    files = repository.version(model, version)
    if verify:
        files.verify()
    manifest = files.manifest
    number = manifest.version
    nbytes = sum(f.nbytes for f in manifest.files.values())
    change_log = ChangeLog(files)
    change_log.look()
    history = change_log.history
    bare = [b for b in unrecorded_deltas(files.folder) if b.step > history.top]
    console = output()
    console.print(f"[bold]{model}[/bold] version {number} of {', '.join(map(str, repository.versions(model)))}")
    console.print(
        f"  {escape(manifest.arch)}, created {_date(manifest.created_at)} UTC, "
        f"{nbytes:,} bytes in {len(manifest.files)} files"
    )
    if manifest.key:
        console.print(f"  signed by key {manifest.key}, edition {manifest.edition}", highlight=False)
    served = f"{history.number} records, generation {number}.{history.target.step}" if history.number else "no records"
    console.print(f"  {served}" + (f"; {len(bare)} delta files without a record" if bare else ""))
    for title, lines in (
        ("inputs", [f"{i.name}: {_shape(i)}" for i in manifest.inputs]),
        *section_lines(manifest.sections),
        ("outputs", [f"{o.name}: {o.dtype} {_row(o)}" for o in manifest.outputs]),
        ("tables", [f"{t.name}: {t.rows:,} rows of {t.dim} {t.dtype}" for t in manifest.embeddings]),
        *[(heading, [line]) for heading, say in ENGINE.offers("descriptions").items() if (line := say(manifest))],
        *([("entities", [_entity(manifest, e) for e in manifest.entities])] if manifest.entities else []),
        ("subgraphs", subgraph_lines(manifest)),
        *([("work", work)] if (work := work_lines(manifest)) else ()),
        ("executables", [_executable(e) for e in manifest.executables]),
        ("choices", choice_lines(package_choices(manifest))),
    ):
        console.print(f"  {title}")
        for line in lines or ["none"]:
            console.print(f"    {escape(line)}", highlight=False)
    if verify:
        console.print("  every file matches its checksum")


def _as_json(repository: Repository, model: str, version: int | None) -> dict[str, Any]:
    # Imported only here and below, because it needs compiled kernels.
    from freshet_serving.processor.running.choices import package_choices

    manifest = repository.version(model, version).manifest
    return {
        "version": manifest.version,
        "versions": repository.versions(model),
        "arch": manifest.arch,
        "executables": [_executable(e) for e in manifest.executables],
        "choices": [choice.to_json() for choice in package_choices(manifest)],
    }


def _entity(manifest: Manifest, entity: EntityEntry) -> str:
    table = manifest.table(entity.table)
    lists = "".join(f", up to {n} of {source}" for source, n in entity.capacities.items())
    columns = ", ".join(spec.name for spec in column_specs(manifest, entity))
    return f"{entity.name}: {table.rows:,} keys of {entity.key}, {4 * table.dim} bytes each: {columns}{lists}"


def _executable(e: ExecutableEntry) -> str:
    return f"{e.backend}-{e.target} {e.precision} for {e.bucket} rows{_part(e)}"


def _part(executable: ExecutableEntry) -> str:
    return "" if executable.subgraph in (SCORE, WHOLE) else f", subgraph {executable.subgraph}"


def _shape(spec: Input) -> str:
    dtype = spec.declared or spec.dtype
    if spec.ragged:
        return f"{dtype} [n, any]"
    row = spec.dims if spec.dims is not None else [spec.columns] if spec.columns else []
    return f"{dtype} [{', '.join(['n', *map(str, row)])}]"


def _row(spec: Output) -> str:
    dims = [spec.columns] if spec.dims is None else spec.dims
    return f"[{', '.join(['n', *map(str, dims)])}]"


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
