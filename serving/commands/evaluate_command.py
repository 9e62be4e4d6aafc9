"""Implement `freshet evaluate`: score any table with any generation of a model, and print tables or JSON lines."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshet_serving.compiler.progress import Reporter, output, progress_bars
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.serving.commands.completion import models

if TYPE_CHECKING:
    from freshet_serving.models.config.evaluate_section import EvaluateConfig
    from freshet_serving.models.config.train_config import TrainConfig
    from freshet_serving.models.data.formats import DataConfig
    from freshet_serving.models.evaluation.generation_scorer import GenerationScorer

SHOWN = ("rows", "auc", "log_loss", "predicted", "observed")


def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A model of the repository, instead of --config.", autocompletion=models)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Training file of the model.")] = None,
    data: Annotated[str | None, typer.Option(help="File, folder or glob of rows. [from the training file]")] = None,
    generation: Annotated[
        str | None, typer.Option(help="Generation, such as 3.17. [the newest version's current one]")
    ] = None,
    repository: Annotated[
        str | None, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models. [from the training file]")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label column; repeatable. [from the training file]")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
    by: Annotated[list[str] | None, typer.Option(help="Column to slice by; repeatable.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Column to group AUC, hit rate and NDCG by. [the first id of side user]")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Places that count in hit rate and NDCG. [10]")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Number of rows to skip at the beginning.")] = 0,
    rows: Annotated[int, typer.Option(min=0, help="Maximum number of rows to score; 0: all.")] = 0,
    leave_one_out: Annotated[
        bool, typer.Option(help="For a next-item network: rank only each user's last event.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Scores rows like a server of a given generation, and prints AUC, log-loss, calibration and slices."""
    from freshet_serving.models.config.evaluate_section import EvaluateConfig
    from freshet_serving.models.config.retrieval_rules import learns_to_retrieve
    from freshet_serving.models.data.formats import DataConfig
    from freshet_serving.models.zoo.architectures import NEXT_ITEM

    scored = Generation.parse(generation) if generation is not None else None
    if (model is None) == (config is None):
        raise BadInput("evaluate: expected either a model of the repository or --config with its training file")
    if config is not None:
        from freshet_serving.models.config.train_config import load_config

        # With "package.module:function" in model.arch, the package may be beside the configuration.
        sys.path.insert(0, str(config.resolve().parent))
        # Evaluation does not depend on whether a run would publish deltas.
        file = load_config(config, publishes=False)
        model, repository = file.model.name, repository or file.publish.repository
        rows_of, measured, trained = file.data, file.evaluate, file
    else:
        if data is None or not label or not repository:
            raise BadInput("evaluate: expected --repository, --data and --label with a model's name")
        rows_of, measured, trained = DataConfig(data), EvaluateConfig(), None
    if data is not None:
        rows_of = dataclasses.replace(rows_of, path=data, format=_format(data, rows_of.format))
    if trained is None or not (trained.sequences or trained.joined):
        # No result depends on the order of the rows.
        rows_of = dataclasses.replace(rows_of, time="")
    rows_of = _labelled(rows_of, label or [], weight)
    measured = EvaluateConfig(tuple(by) if by else measured.by, group or measured.group, top or measured.top)
    if trained is not None and trained.model.arch in NEXT_ITEM:
        _rank_next(str(repository), scored, rows_of, measured.top, skip, rows, leave_one_out, as_json, trained)
        return
    if trained is not None and learns_to_retrieve(trained.model) and not leave_one_out:
        _rank_chosen(str(repository), scored, rows_of, measured.top, skip, rows, as_json, trained)
        return
    if leave_one_out:
        raise BadInput("--leave-one-out: expected --config with the training file of a next-item network")
    _score(str(repository), str(model), scored, rows_of, measured, skip, rows, as_json, trained)


def _score(
    repository: str,
    model: str,
    generation: Generation | None,
    data: DataConfig,
    measured: EvaluateConfig,
    skip: int,
    rows: int,
    as_json: bool,
    trained: TrainConfig | None,
) -> None:
    from freshet_serving.models.config.evaluate_section import EvaluateConfig
    from freshet_serving.models.data.formats import label_names
    from freshet_serving.models.evaluation.evaluate import evaluate as run
    from freshet_serving.models.evaluation.evaluate import user_column
    from freshet_serving.models.zoo.architectures import NEXT_ITEM

    console = output(highlight=False)
    with _opened(console, repository, model, generation, as_json) as (scorer, reporter):
        if scorer.description.arch in NEXT_ITEM:
            raise BadInput(f"evaluate: expected --config, as {model!r} ranks what came next in an event log")
        if not measured.group:
            measured = EvaluateConfig(measured.by, user_column(scorer.description), measured.top)
        labels = label_names(data)
        lines = list(run(scorer, data, labels, measured, reporter, skip, rows, trained).lines())
        about = {"model": model, "generation": str(scorer.generation)}
    if as_json:
        for line in lines:
            print(json.dumps(about | line))
        return
    console.print(f"[bold]{escape(model)}[/bold] {about['generation']} on {escape(data.path)}", soft_wrap=True)
    for name in labels:
        _print(console, [line for line in lines if line["label"] == name], name if len(labels) > 1 else "")


@contextmanager
def _opened(
    console: Console, repository: str, model: str, generation: Generation | None, as_json: bool
) -> Iterator[tuple[GenerationScorer, Reporter]]:
    """Open a generation, and a reporter: on stderr if a program reads the output."""
    from freshet_serving.models.evaluation.generation_scorer import GenerationScorer

    with (
        progress_bars(Console(stderr=True) if as_json else console) as reporter,
        GenerationScorer(repository, model, generation) as scorer,
    ):
        yield scorer, reporter


def _rank_next(
    repository: str,
    generation: Generation | None,
    data: DataConfig,
    top: int,
    skip: int,
    rows: int,
    leave_one_out: bool,
    as_json: bool,
    trained: TrainConfig,
) -> None:
    """Rank the next items among all, and print hit rate and NDCG."""
    from freshet_serving.models.evaluation.next_item_evaluation import rank_next_items

    console, model = output(highlight=False), trained.model.name
    with _opened(console, repository, model, generation, as_json) as (scorer, reporter):
        ranking, counts = rank_next_items(scorer, data, trained, top, reporter, skip, rows, leave_one_out)
        about = {"model": model, "generation": str(scorer.generation)}
    result = ranking.result()
    if as_json:
        figures = {"hit_rate": result.hit_rate, "ndcg": result.ndcg, "events": result.groups, "items": ranking.items}
        print(json.dumps(about | {"what": "next_item", "top": top} | figures))
        for line in counts.lines() if counts is not None else ():
            print(json.dumps(about | line))
        return
    console.print(f"[bold]{escape(model)}[/bold] {about['generation']} on {escape(data.path)}", soft_wrap=True)
    console.print(
        f"the first {top} of {ranking.items:,} items: hit rate {_told(result.hit_rate)}, NDCG {_told(result.ndcg)}"
        f" over {result.groups:,} events",
        soft_wrap=True,
    )
    if counts is not None:
        for text in filter(None, (counts.line(), counts.advice(result.ndcg))):
            console.print(text, soft_wrap=True)


def _rank_chosen(
    repository: str,
    generation: Generation | None,
    data: DataConfig,
    top: int,
    skip: int,
    rows: int,
    as_json: bool,
    trained: TrainConfig,
) -> None:
    """Rank what users chose among all items of the data, and print recall and NDCG."""
    from freshet_serving.models.evaluation.retrieval_evaluation import rank_pairs

    console, model = output(highlight=False), trained.model.name
    with _opened(console, repository, model, generation, as_json) as (scorer, reporter):
        ranking = rank_pairs(scorer, data, trained, top, reporter, skip, rows)
        about = {"model": model, "generation": str(scorer.generation)}
    if as_json:
        counted = {"events": ranking.targets, "items": ranking.items}
        print(json.dumps(about | {"what": "retrieval"} | ranking.figures() | counted))
        return
    console.print(f"[bold]{escape(model)}[/bold] {about['generation']} on {escape(data.path)}", soft_wrap=True)
    console.print(ranking.told(), soft_wrap=True)


def _format(path: str, usual: str) -> str:
    """Return the format that the name of --data implies, or else the training file's."""
    from freshet_serving.models.data.formats import STREAMS, format_of

    try:
        return format_of(path)
    except BadInput:
        if not usual or usual in STREAMS:
            raise
        return usual


def _labelled(data: DataConfig, label: Sequence[str], weight: str | None) -> DataConfig:
    changed: dict[str, Any] = {}
    if label:
        changed["label"] = label[0] if len(label) == 1 else tuple(label)
    if weight is not None:
        changed["weight"] = weight
    data = dataclasses.replace(data, **changed)
    if data.format in ("parquet", "csv") and not data.label:
        raise BadInput("label: expected the name of the label column, got nothing; set --label")
    return data


def _print(console: Console, lines: Sequence[dict[str, Any]], label: str) -> None:
    (whole,) = (line for line in lines if line["what"] == "all")
    if label:
        console.print(f"[bold]{escape(label)}[/bold]")
    console.print(
        f"AUC {_told(whole['auc'])}{_off(whole['auc_error'])}, log-loss {_told(whole['log_loss'])} over"
        f" {whole['rows']} rows; predicted {_told(whole['predicted'])}, observed {_told(whole['observed'])},"
        f" calibration error {_told(whole['calibration_error'])}",
        soft_wrap=True,
    )
    if baselines := [line for line in lines if line["what"] == "baseline"]:
        figures = ", ".join(f"{line['name']} AUC {_told(line['auc'])}" for line in baselines)
        console.print(f"baseline: {figures} over {baselines[0]['rows']} rows", soft_wrap=True)
    if whole["not_scored"]:
        console.print(f"{whole['not_scored']:,} rows with non-finite scores were skipped", soft_wrap=True)
    if "group" in whole:
        sampled = f", a sample of {whole['grouped_share']:.3g} of all" if whole["grouped_share"] < 1 else ""
        console.print(
            f"grouped by {escape(whole['group'])}: AUC {_told(whole['grouped_auc'])}{_off(whole['grouped_error'])} over"
            f" {whole['grouped_groups']:,} of {whole['grouped_of']:,} groups that have both labels{sampled}",
            soft_wrap=True,
        )
        if whole["ranked"]:
            console.print(
                f"the first {whole['top']} of each: hit rate {_told(whole['hit_rate'])}, NDCG {_told(whole['ndcg'])}"
                f" over {whole['ranked']:,} groups with a label of 1",
                soft_wrap=True,
            )
    deciles = [line for line in lines if line["what"] == "decile"]
    if deciles:
        table = _table("scores", "rows", "predicted", "observed")
        for line in deciles:
            span = f"{_told(line['low'])} to {_told(line['high'])}"
            table.add_row(span, f"{line['rows']:,}", _told(line["predicted"]), _told(line["observed"]))
        console.print(table)
    for name in dict.fromkeys(line["by"] for line in lines if line["what"] == "slice"):
        table = _table(name, *(column.replace("_", "-") for column in SHOWN))
        for line in (line for line in lines if line["what"] == "slice" and line["by"] == name):
            value = f"{line['others']:,} others" if line["others"] else line["value"][:80] or "(empty)"
            table.add_row(escape(value), f"{line['rows']:,}", *(_told(line[column]) for column in SHOWN[1:]))
        console.print(table)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(escape(first), overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _told(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _off(error: float | None) -> str:
    return f" (off by {error:.1g} at most)" if error else ""
