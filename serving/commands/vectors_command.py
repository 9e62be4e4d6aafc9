"""Implement `freshet vectors`: compute the item vectors of a two-tower model for nearest-neighbour search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from freshet_serving.compiler.progress import progress_bars
from freshet_serving.processor.generation import Generation
from freshet_serving.serving.commands.completion import models


def vectors(
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    items: Annotated[str, typer.Option(help="File, folder or glob of the items' features: Parquet, CSV, MovieLens.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write: ids and vectors.")],
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    id_name: Annotated[
        str, typer.Option("--id", help="Column that identifies items. [the only id or string of side item]")
    ] = "",
    output: Annotated[str, typer.Option(help="Model output to write.")] = "item_vector",
    generation: Annotated[
        str | None, typer.Option(help="Generation, such as 3.17. [the newest version's current one]")
    ] = None,
) -> None:
    """Computes the vector of every item, and writes ids and vectors."""
    from freshet_serving.models.data.formats import DataConfig, format_of
    from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
    from freshet_serving.models.evaluation.item_vectors import write_vectors

    parsed = Generation.parse(generation) if generation is not None else None
    data = DataConfig(items, format_of(items), ())
    console = Console(highlight=False)
    with progress_bars(console) as reporter, GenerationScorer(repository, model, parsed) as scorer:
        written = write_vectors(scorer, data, output, id_name, out, reporter)
        console.print(f"{output} of {written:,} items by {model} {scorer.generation} in {out}", soft_wrap=True)
