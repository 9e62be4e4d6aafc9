"""Implement `freshet train` and `freshet bench`; the training component is imported only when they run."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from freshet_serving.compiler.progress import progress_bars
from freshet_serving.processor.errors import BadInput, Refused
from freshet_serving.processor.ports import ENGINE
from freshet_serving.serving.commands.shutdown_signals import exit_on_sigterm, stop_on_signal

if TYPE_CHECKING:
    from freshet_serving.models.config.train_config import StartOptions

bench_app = typer.Typer(help="The benchmark's model and its deltas, without training.", no_args_is_help=True)

RepositoryOption = Annotated[str, typer.Option("--repository", envvar="FRESHET_REPOSITORY", help="Folder of models.")]


def _show_keys(value: bool) -> None:
    if value:
        from freshet_serving.models.config.file_keys import keys_as_text

        typer.echo(keys_as_text())
        raise typer.Exit


def train(
    config: Annotated[
        Path, typer.Option(help="Training file (TOML): model, data, features, publish (docs/how-to/train.md).")
    ],
    replay: Annotated[
        bool, typer.Option("--replay", help="After a rollback, learn the undone rows again instead of skipping them.")
    ] = False,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="First publish the current weights as a new version.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="With --new-version: train it from new weights.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep training on new rows from a folder of Parquet files, Redis or Kafka.")
    ] = False,
    repeat: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Learn what a followed run has learned, in the same steps: .checkpoints/NAME of its repository.",
        ),
    ] = None,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port that serves /metrics for Prometheus; 0: off.")
    ] = 0,
    metrics_host: Annotated[str, typer.Option(help="Address to bind --metrics-port to.")] = "127.0.0.1",
    processes: Annotated[
        int, typer.Option(min=1, help="Training processes on this machine (docs/how-to/distributed-training.md).")
    ] = 1,
    online_store: Annotated[
        str,
        typer.Option(
            envvar="FRESHET_ONLINE_STORE",
            metavar="NAME=URL",
            help="Stores that histories are written to, separated by commas; [online_stores.NAME] has more options.",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Override a key of the file, such as train.seed=1; repeatable."
        ),
    ] = None,
    help_keys: Annotated[
        bool,
        typer.Option("--help-keys", callback=_show_keys, is_eager=True, help="Show every key of the file and exit."),
    ] = False,
) -> None:
    """Trains a model on your own table, publishes a version, then deltas. Run it again after a crash to continue."""
    from freshet_serving.models.config.train_config import StartOptions
    from freshet_serving.models.parallel.mpi_run import refuse_processes, started_by_mpi, take_part
    from freshet_serving.processor.features.input_lookup import named_addresses

    refuse_processes(processes)
    start_options = StartOptions(replay, new_version, from_scratch, repeat)
    changes = [*(overrides or ()), *(["data.follow=true"] if follow else ())]
    if repeat is not None:
        from freshet_serving.models.training.repeated_run import RepeatedRun

        if follow:
            raise BadInput("--repeat: not allowed with --follow, because it reads stored rows")
        changes += ["data.follow=false", f"publish.full_rows={RepeatedRun(repeat).full_rows}"]
    stores = named_addresses(online_store.split(","), "--online-store") if online_store else {}
    changes += [f"online_stores.{name}={json.dumps(address)}" for name, address in stores.items()]
    # With "package.module:function" in model.arch, the package may be beside the configuration.
    sys.path.insert(0, str(config.resolve().parent))

    def run(make_trainer: Callable[..., Any] | None) -> None:
        _train(config, changes, start_options, make_trainer, (metrics_host, metrics_port))

    if started_by_mpi():
        take_part(run)
    elif processes > 1:
        from freshet_serving.models.config import next_item_rules, retrieval_rules
        from freshet_serving.models.config.train_config import load_config
        from freshet_serving.models.parallel.mpi_launch import launch

        # What is wrong in the file is said once, before any process is started.
        model = load_config(config, changes).model
        next_item_rules.check_one_process(model.arch, processes)
        retrieval_rules.check_one_process(model, processes)
        sys.exit(launch(processes, [sys.executable, "-m", "freshet_serving", *sys.argv[1:]]))
    else:
        run(None)


@contextmanager
def _importing() -> Iterator[None]:
    """Collect no garbage while the block imports, nor later what it imported.

    Looking through TensorFlow's objects again and again took a second of a run over few rows.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _train(
    config: Path,
    overrides: Sequence[str],
    start_options: StartOptions,
    make_trainer: Callable[..., Any] | None,
    metrics: tuple[str, int],
) -> None:
    """Train a model, publish it and print a summary; `metrics` is host and port of /metrics, port 0 for none."""
    from freshet_serving.models.config.retrieval_rules import learns_to_retrieve
    from freshet_serving.models.config.train_config import load_config
    from freshet_serving.models.runs.live_view import LiveView, live_view
    from freshet_serving.models.runs.run_lock import trainer_lock
    from freshet_serving.models.runs.train_metrics import TrainMetrics, serve_metrics
    from freshet_serving.models.streams.history_writer import check_stores
    from freshet_serving.models.streams.open_rows import checkpoint_folder, open_rows
    from freshet_serving.models.training.heartbeat import Heartbeat

    settings = load_config(config, overrides)
    check_stores(settings)
    exit_on_sigterm()
    console, checkpoints = Console(), checkpoint_folder(settings)
    if start_options.repeat is not None and start_options.repeat.resolve() == checkpoints.resolve():
        raise BadInput("--repeat: expected checkpoints of another repository than publish.repository, got its own")
    heartbeat = Heartbeat(settings.publish.repository, settings.model.name, settings.data.follow)
    planner = ENGINE.only("core_planner") if settings.data.follow else None
    borrower: AbstractContextManager[object] = nullcontext()
    if planner is not None:
        borrower = planner.borrower(settings.publish.repository, lambda: heartbeat.status().learned_rows > 0)
    # The lock first: a second trainer, which is refused, does not report in the place of the first.
    with trainer_lock(checkpoints, settings.model.name), heartbeat, borrower:
        source = open_rows(settings, checkpoints, start_options.from_scratch, start_options.repeat)
        # Imported late: TensorFlow takes seconds to import, and errors in the data should be reported first.
        with _importing():
            from freshet_serving.models.training.loop import TrainingRun
            from freshet_serving.models.training.next_item_run import NextItemRun
            from freshet_serving.models.training.retrieval_run import RetrievalRun
            from freshet_serving.models.zoo.architectures import NEXT_ITEM

        makes_run = NextItemRun if settings.model.arch in NEXT_ITEM else TrainingRun
        if learns_to_retrieve(settings.model):
            makes_run = RetrievalRun
        with live_view(console) if settings.data.follow else progress_bars(console) as reporter:
            run = makes_run(settings, source, reporter=reporter, start_options=start_options, make_trainer=make_trainer)
            heartbeat.status = run.status
            if isinstance(reporter, LiveView):
                reporter.status = run.status
                stop_on_signal(lambda: heartbeat.stop(run.stop))
            if metrics[1]:
                serve_metrics(TrainMetrics(settings.model.name, run.status), *metrics)
            summary = run.run()
    if summary.report is not None:
        console.print(f"report: {summary.report}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{settings.model.name} {summary.generation} is in {settings.publish.repository}; serve it with\n"
        f"  freshet serve --repository {settings.publish.repository}",
        highlight=False,
        soft_wrap=True,
    )
    if not settings.data.follow and (reason := run.status().held):
        name = settings.model.name
        raise Refused(
            f"the guard holds deltas of {name!r}, which are not served: {reason}; `freshet delta release {name}` serves"
            f" them, `freshet delta reject {name}` drops them"
        )


@bench_app.command("model")
def bench_model(
    rows: Annotated[int, typer.Option(min=1, help="Rows of each of the 26 tables.")], repository: RepositoryOption
) -> None:
    """Writes the benchmark's DeepFM as the next version of model `bench`, without training."""
    from freshet_serving.models.bench import MODEL, write_model

    console = Console()
    with console.status("writing and compiling"):
        generation = write_model(repository, rows)
    console.print(f"{MODEL} {generation}: 26 tables of {rows} rows", highlight=False)


@bench_app.command("deltas")
def bench_deltas(
    rows: Annotated[int, typer.Option(min=1, help="Changed rows per delta, over all tables.")],
    count: Annotated[int, typer.Option(min=1, help="Number of consecutive deltas.")],
    repository: RepositoryOption,
    out: Annotated[Path, typer.Option(help="Folder to write the deltas to.")],
) -> None:
    """Writes consecutive deltas for model `bench`, without applying them."""
    from freshet_serving.models.bench import write_deltas

    console = Console()
    with progress_bars(console) as reporter:
        reporter.begin("writing deltas", count)
        for _ in write_deltas(repository, rows, count, out):
            reporter.advance(1)
    console.print(f"{count} deltas of {rows} rows in {out}", highlight=False, soft_wrap=True)
