"""`freshet train` and `freshet bench`: commands of the floor above, imported only when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compiler.progress import bars

bench_app = typer.Typer(help="The benchmark's model and its deltas, without training.", no_args_is_help=True)

RepositoryOption = Annotated[Path, typer.Option("--repository", envvar="FRESHET_REPOSITORY", help="Folder of models.")]


def train(
    config: Annotated[Path, typer.Option(help="TOML file: model, data, features, train, publish (docs/data.md).")],
    replay: Annotated[
        bool, typer.Option("--replay", help="After a rollback learn the undone rows again, instead of skipping them.")
    ] = False,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="First publish the weights that are there as a second version.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="With --new-version: train new weights for it.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="As if the file said so: --set train.seed=1; repeat."),
    ] = None,
) -> None:
    """Trains a model on your own table, publishes a version, then deltas. Run again after a kill to go on."""
    from models.config.train_config import Beginning, load_config
    from models.data.open_data import open_source

    beginning = Beginning(replay, new_version, from_scratch)
    # "package.module:function" in model.arch may lie beside the configuration.
    sys.path.insert(0, str(config.resolve().parent))
    settings = load_config(config, overrides or ())
    source = open_source(settings.data, settings.features)
    # Only now: TensorFlow takes seconds to import, and mistakes in the file or the data should not have to wait.
    from models.training.loop import TrainingRun

    console = Console()
    with bars(console) as reporter:
        summary = TrainingRun(settings, source, reporter=reporter, beginning=beginning).run()
    if summary.report is not None:
        console.print(f"report: {summary.report}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{settings.model.name} {summary.generation} is in {settings.publish.repository}; serve it with\n"
        f"  freshet serve --repository {settings.publish.repository}",
        highlight=False,
        soft_wrap=True,
    )


@bench_app.command("model")
def bench_model(
    rows: Annotated[int, typer.Option(min=1, help="Rows of each of the 26 tables.")],
    repository: RepositoryOption,
    dtype: Annotated[str, typer.Option(help="Of the rows: float32, float16, bfloat16 or int8.")] = "float32",
) -> None:
    """Writes the benchmark's DeepFM as the next version of model `bench`, without training."""
    from models.bench import MODEL, write_model

    console = Console()
    with console.status("writing and compiling"):
        generation = write_model(repository, rows, dtype=dtype)
    console.print(f"{MODEL} {generation}: 26 tables of {rows} rows, {dtype}", highlight=False)


@bench_app.command("deltas")
def bench_deltas(
    rows: Annotated[int, typer.Option(min=1, help="Changed rows of each delta, over all tables.")],
    count: Annotated[int, typer.Option(min=1, help="How many deltas, chained.")],
    repository: RepositoryOption,
    out: Annotated[Path, typer.Option(help="Folder to write them to.")],
) -> None:
    """Writes chained deltas for model `bench`, without applying them."""
    from models.bench import write_deltas

    console = Console()
    with bars(console) as reporter:
        reporter.begin("writing deltas", count)
        for _ in write_deltas(repository, rows, count, out):
            reporter.advance(1)
    console.print(f"{count} deltas of {rows} rows in {out}", highlight=False, soft_wrap=True)
