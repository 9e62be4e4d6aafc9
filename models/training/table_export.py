"""Export a trainer's tables to Parquet beside its checkpoints at the end of a run."""

from __future__ import annotations

from pathlib import Path

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.embedding.multi_hash import NO_HASH
from freshet_serving.models.evaluation.analysis_files import RowsFile, write_summaries
from freshet_serving.models.evaluation.row_layers import PIECE_ROWS, RowChunk
from freshet_serving.models.evaluation.table_summary import TableSummary, summarise
from freshet_serving.models.training.hash_choice import of_version
from freshet_serving.models.training.trainer import Trainer

TABLES, ROWS = "tables.parquet", "rows.parquet"


def write_analysis(folder: Path, trainer: Trainer, report: Reporter) -> None:
    """Write tables.parquet, a summary of each table, and rows.parquet, its rows (models.evaluation.analysis_files)."""
    for name, tiers in trainer.tiers.items():
        log = f"{len(tiers.cold):,} on disk in {tiers.cold.log_nbytes >> 20:,} MiB"
        report.note(f"table {name!r}: {tiers.hot:,} rows in memory, {log}")
    report.begin("analysing tables", sum(len(table) for table in trainer.tables.values()))
    summaries, hashes = [], of_version(trainer.manifest)
    with RowsFile(folder / ROWS) as rows:
        for name, table in trainer.tables.items():
            slots_nbytes = len(table) * table.slots_nbytes
            hashed = hashes.get(name, NO_HASH) != NO_HASH
            summary = TableSummary(name, table.dim, "float32", trainer.steps, hashed, slots_nbytes=slots_nbytes)
            pieces = (RowChunk(c.keys, c.rows, c.counts, c.last_step) for c in table.pieces(PIECE_ROWS))
            rows.begin(name, len(table), trainer.steps)
            summaries.append(summarise(summary, rows.tee(pieces), report.advance))
    write_summaries(folder / TABLES, summaries)
