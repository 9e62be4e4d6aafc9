"""Implement `freshet inspect --tables`: analyse a model's embedding tables, in the terminal and as an HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshet_serving.compiler.progress import Reporter, output, progress_bars
from freshet_serving.models.evaluation.analysis_page import (
    SAVING_HEADS,
    SUMMARY_HEADS,
    page,
    saving_cells,
    summary_cells,
)
from freshet_serving.models.evaluation.changed_rows import ChangedRows, changed_rows
from freshet_serving.models.evaluation.row_layers import RowLayers
from freshet_serving.models.evaluation.table_summary import TableSummary, summarise
from freshet_serving.models.training.checkpoint import MappedCheckpoint, map_newest
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import HASHES, ROW_TYPES, TableEntry, atomic_file
from freshet_serving.processor.repository import ChangeLog, Repository, VersionContents, open_repository, table_file
from freshet_serving.processor.tables.table import are_row_numbers

CHECKPOINTS = ".checkpoints"
SHOWN_MOVED = 5


@dataclass(frozen=True, slots=True)
class TableAnalysis:
    """Analysis of one generation's tables: the model and generation as title, and remarks on what was analysed."""

    title: str
    notes: list[str]
    summaries: list[TableSummary]
    changes: list[ChangedRows]


def inspect_tables(root: str, model: str, generation: str, since: str, html: Path | None) -> None:
    """Print the analysis of a generation's tables, "" for the newest, and write it as HTML.

    Args:
        since: The older generation to compare with. "" for step 0 of its version; for a step 0, the newest generation
            of the previous version.
    """
    if html is not None and html.is_dir():
        raise BadInput("--out: expected a file, got a folder")
    console = output()
    with progress_bars(console) as reporter:
        analysis = analyse_tables(root, model, generation, since, reporter)
    _print(console, analysis)
    if html is not None:
        with atomic_file(html) as file:
            file.write(page(analysis.title, analysis.notes, analysis.summaries, analysis.changes).encode())
        console.print(f"written to {html}", highlight=False, markup=False)


def analyse_tables(root: str, model: str, generation: str, since: str, reporter: Reporter) -> TableAnalysis:
    repository = open_repository(root)
    newer = _contents(repository, model, Generation.parse(generation) if generation else None)
    analysed = Generation(newer.base.manifest.version, newer.link.step)
    checkpoint = None if generation else _checkpoint(Path(root), model, analysed.version)
    older = _older(repository, model, analysed, since)
    notes, summaries, changes = [_of(checkpoint)], [], []
    entries = newer.base.manifest.embeddings
    transforms = {t.name for t in newer.base.manifest.transforms if t.op in HASHES}
    hashed = {f.table for f in newer.base.manifest.features if f.input in transforms}
    learned = {t.name: checkpoint.rows(t.name, t.dim) if checkpoint else None for t in entries}
    served = {t.name: RowLayers.of(newer, t.name) for t in entries}
    reporter.begin("tables", sum((learned[t.name] or served[t.name]).most_rows for t in entries))
    for t in entries:
        summary = TableSummary(t.name, t.dim, t.dtype, checkpoint.steps if checkpoint else 0, t.name in hashed)
        rows = learned[t.name] or served[t.name]
        summarise(summary, rows.pieces(), reporter.advance)
        _weigh(summary, t, newer, checkpoint)
        summaries.append(summary)
    if older is None:
        notes.append("nothing to compare with: this is the first generation")
    else:
        before = {t.name: RowLayers.of(older, t.name) for t in older.base.manifest.embeddings}
        compared = Generation(older.base.manifest.version, older.link.step)
        notes.append(f"rows that moved: since {compared}")
        seeds = {t.name: t.hash_seed for t in older.base.manifest.tables}
        both = [t for t in entries if t.name in before and before[t.name].dim == t.dim]
        # Under different seeds, one string has different keys.
        if apart := [t.name for t in both if seeds[t.name] != t.hash_seed]:
            notes.append(f"not compared because {compared} hashes their strings with another seed: {', '.join(apart)}")
            both = [t for t in both if t.name not in apart]
        reporter.begin("changes", sum(served[t.name].most_rows + before[t.name].most_rows for t in both))
        changes = [changed_rows(served[t.name], before[t.name], reporter.advance) for t in both]
    return TableAnalysis(f"{model} {analysed}", notes, summaries, changes)


def _contents(repository: Repository, model: str, generation: Generation | None) -> VersionContents:
    version = repository.version(model, generation.version if generation else None)
    change_log = ChangeLog.of(version)
    link = change_log.history.head
    if generation is not None:
        if generation.step < change_log.history.base.step:
            change_log.reach_back()
        generation_link = change_log.history.on_line(generation.step)
        if generation_link is None:
            newest = f"{generation.version}.{link.step}"
            raise NotFound(f"generation {generation}: not a generation of {model!r}; the newest is {newest}")
        link = generation_link
    return VersionContents(version, change_log, link)


def _older(repository: Repository, model: str, analysed: Generation, since: str) -> VersionContents | None:
    if since:
        return _contents(repository, model, Generation.parse(since))
    if analysed.step:
        return _contents(repository, model, Generation(analysed.version, 0))
    before = [number for number in repository.versions(model) if number < analysed.version]
    if not before:
        return None
    change_log = ChangeLog.of(repository.version(model, before[-1]))
    return _contents(repository, model, Generation(before[-1], change_log.history.head.step))


def _checkpoint(root: Path, model: str, version: int) -> MappedCheckpoint | None:
    """Return the trainer's newest checkpoint if it is in the repository and belongs to this version."""
    checkpoint = map_newest(root / CHECKPOINTS / model)
    return checkpoint if checkpoint is not None and checkpoint.state.version == version else None


def _weigh(
    summary: TableSummary, entry: TableEntry, contents: VersionContents, checkpoint: MappedCheckpoint | None
) -> None:
    file = table_file(entry.name)
    summary.file_nbytes = contents.base.manifest.files[file].nbytes
    kind = ROW_TYPES[entry.dtype]
    row_nbytes = entry.dim * kind.dtype.itemsize + (4 if kind.scaled else 0)
    stored = contents.base.tensors(file)
    summary.memory_nbytes = summary.rows * row_nbytes + stored["index"].nbytes
    summary.read_by = "row number" if are_row_numbers(stored["keys"]) else "hash"
    summary.slots_nbytes = summary.rows * (checkpoint.slots_nbytes(entry.name) if checkpoint else 0)


def _of(checkpoint: MappedCheckpoint | None) -> str:
    if checkpoint is None:
        return "no checkpoint found: frequencies are from the version's publication, ages are unknown"
    state = checkpoint.state
    return (
        f"rows, frequencies and ages of the trainer's newest checkpoint, {state.version}.{state.step}, after"
        f" {checkpoint.steps:,} steps"
    )


def _print(console: Console, analysis: TableAnalysis) -> None:
    console.print(f"[bold]{escape(analysis.title)}[/bold]")
    for note in analysis.notes:
        console.print(f"  {note}", markup=False, highlight=False)
    table = _table(SUMMARY_HEADS)
    for s in analysis.summaries:
        table.add_row(*map(escape, summary_cells(s)))
    console.print(table)
    table = _table(("table", *SAVING_HEADS))
    for s in analysis.summaries:
        for saving in s.savings():
            table.add_row(escape(s.name), *saving_cells(s, saving))
    if table.row_count:
        console.print(table)
    table = _table(("table", "came", "went", "moved", "furthest: id", "by"))
    for c in analysis.changes:
        first = [f"{c.born:,}", f"{c.gone:,}", f"{c.moved:,}"]
        far = [(str(key), f"{distance:.4g}") for key, distance, *_ in c.furthest[:SHOWN_MOVED]] or [("", "")]
        for i, cells in enumerate(far):
            table.add_row(*([escape(c.name), *first] if i == 0 else [""] * 4), *cells)
    if table.row_count:
        console.print(table)


def _table(heads: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for i, head in enumerate(heads):
        # A narrow terminal wraps names, but not numbers.
        table.add_column(head, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    return table
