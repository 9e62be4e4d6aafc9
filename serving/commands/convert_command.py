"""Implement `freshet convert`: write the data of a training file as one Parquet file that gives the same batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from freshet_serving.compiler.progress import progress_bars
from freshet_serving.processor.errors import BadInput


def convert(
    out: Annotated[Path, typer.Argument(help="The Parquet file to write.")],
    config: Annotated[
        Path, typer.Option(help="Training file (TOML); its [data] and [features] sections say what to read.")
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing file.")] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Override a key of the file, such as data.path=PATH; repeatable."
        ),
    ] = None,
) -> None:
    """Converts the data of a training file to one Parquet file, and prints the [data] section that reads it."""
    from freshet_serving.models.config.feature_sections import read_features
    from freshet_serving.models.config.train_config import load_config
    from freshet_serving.models.data.formats import TEXTS
    from freshet_serving.models.data.open_data import default_features, open_source
    from freshet_serving.models.data.parquet_copy import copy_to_parquet

    settings = load_config(config, overrides or ())
    if out.resolve().is_relative_to(folder := Path(settings.data.path).resolve()) and folder.is_dir():
        raise BadInput(
            f"convert: expected a file outside data.path, got {out.name[:80]!r}, which would be read as data"
        )
    source = open_source(settings.data, settings.features)
    console = Console(stderr=True)
    with progress_bars(console) as reporter:
        rows = copy_to_parquet(source, out, reporter, overwrite, settings.data.format in TEXTS)
    console.print(f"{rows:,} rows in {out}; read them in a training file with", highlight=False, soft_wrap=True)
    labels, schema = source.schema.labels, source.schema
    lines = ["[data]", f"path = {json.dumps(str(out))}", 'format = "parquet"']
    lines.append(f"label = {json.dumps(labels[0] if len(labels) == 1 else labels)}")
    lines += [
        f"{role} = {json.dumps(name)}" for role, name in (("time", schema.time), ("weight", schema.weight)) if name
    ]
    defaults = default_features(settings.data.format, settings.data.path)
    if defaults and read_features({}, settings.data) == settings.features:
        for name, section in defaults.items():
            lines += ["", f"[features.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    print("\n".join(lines))
