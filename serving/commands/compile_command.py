"""Implement `freshet compile`: turn its options into CompileOptions and run the compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshet_serving.compiler.progress import output, progress_bars
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.commands.completion import models


def compile_command(
    target: Annotated[
        str,
        typer.Argument(metavar="PACKAGE|MODEL", help="A version's folder, or a model's name.", autocompletion=models),
    ],
    version: Annotated[int | None, typer.Argument(help="Version of the model. [newest]")] = None,
    repository: Annotated[
        str | None, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models; required with a model's name.")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help='Backends, separated by commas, such as "xla,openvino:bfloat16". [all installed]')
    ] = None,
    buckets: Annotated[
        str | None, typer.Option(help='Batch sizes, such as "1,16,64,256". [those of the version]')
    ] = None,
    sample: Annotated[
        Path | None, typer.Option(help="Derive the buckets from this Parquet file: column `rows`, one row per request.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16, float16 (GPUs), int8, or auto: the fastest within the bounds, which needs --data "
            "or a recording."
        ),
    ] = "auto",
    max_error: Annotated[
        float, typer.Option(help="Maximum change of scores in a lower precision, in 99 of 100 rows.")
    ] = 2e-3,
    data: Annotated[
        Path | None, typer.Option(help="Labelled rows (Parquet): a lower precision must keep their AUC.")
    ] = None,
    label: Annotated[str, typer.Option(help="With --data: label column, 0 or 1.")] = "label",
    max_auc_change: Annotated[float, typer.Option(help="With --data: maximum change of the AUC.")] = 1e-4,
    target_gpus: Annotated[
        str | None,
        typer.Option(
            "--target",
            help='GPUs to compile for as well, on any machine, such as "cuda-sm_80,cuda-sm_90"; needs the gpu extra.',
        ),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Print costs and errors of every backend.")] = False,
) -> None:
    """Compiles a version for every installed backend, measures each, and keeps the fastest for each batch size.

    A running server takes the result when it next loads the version.
    """
    from freshet_serving.compiler.building.calibrate import Tolerance
    from freshet_serving.compiler.building.recompile import CompileOptions, compile_version, find_version
    from freshet_serving.processor.repository import Keyring

    options = CompileOptions(
        backends=_names(backends),
        precision=_precision(precision),
        buckets=_numbers(buckets or ""),
        sample=sample,
        data=data,
        label=label,
        bound=Tolerance(max_error, max_auc_change),
        targets=_names(target_gpus),
    )
    if options.buckets and sample is not None:
        raise BadInput("--buckets, --sample: expected one of them, got both")
    if Path(target, "model.json").is_file() and version is None:
        repository = None
    found_version = find_version(target, repository, version)
    console = output(highlight=False)
    with progress_bars(console) as reporter:
        done = compile_version(found_version.folder, options, reporter, found_version.storage, Keyring.of_writer())
    if report:
        from freshet_serving.compiler.building.compile_report import print_report

        print_report(done, console)
    else:
        for line in (*done.skipped, *done.calibration.refused, *done.notes):
            console.print(line, markup=False, soft_wrap=not console.is_terminal)
        served = ", ".join(f"{b}: {e.variant} {e.cost_us:.0f} us" for b, e in sorted(done.chosen.items()))
        summary = f"{done.manifest.model} {done.manifest.version}: {served}"
        if options.targets:
            summary += f"; also for {', '.join(options.targets)}"
        console.print(summary, markup=False, soft_wrap=not console.is_terminal)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def _precision(text: str) -> str:
    from freshet_serving.compiler.building.calibrate import AUTO

    precisions = (AUTO, "float32", "bfloat16", "float16", "int8")
    if text not in precisions:
        raise BadInput(f"--precision: expected one of {', '.join(precisions)}, got {text[:64]!r}")
    return text


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 8 for part in parts):
        raise BadInput(f"--buckets: expected batch sizes separated by commas, got {text[:64]!r}")
    return tuple(int(part) for part in parts)
