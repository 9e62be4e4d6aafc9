"""Implement `freshet import` and `freshet inspect --graph`; the compiler is imported only when they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from freshet_serving.processor.errors import BadInput, nearest_file

RepositoryOption = Annotated[str, typer.Option("--repository", envvar="FRESHET_REPOSITORY", help="Folder of models.")]


def import_command(
    source: Annotated[Path, typer.Argument(help="A SavedModel's folder, or a .keras or .onnx file.")],
    repository: RepositoryOption,
    name: Annotated[str, typer.Option(help="The model's name in the repository.")],
    version: Annotated[int | None, typer.Option(min=1, help="Version to write. [the next]")] = None,
    signature: Annotated[str, typer.Option(help="Signature of a SavedModel to serve.")] = "serving_default",
    ragged: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUES,ROW_SPLITS: these tensors of the signature are one ragged input."),
    ] = None,
    sparse: Annotated[
        list[str] | None,
        typer.Option(help="NAME=INDICES,VALUES,SHAPE: these tensors of the signature are one sparse input."),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(help="Name of a user input: one row for all candidates, computed once per request."),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help='JSON file {"inputs": {NAME: [rows]}} to test the model with. [generated]')
    ] = None,
    translate: Annotated[
        bool, typer.Option("--translate", help="Translate an ONNX file to TensorFlow, for its passes and backends.")
    ] = False,
) -> None:
    """Imports a TensorFlow SavedModel, Keras or ONNX file: compiles and tests it, then commits a version."""
    from freshet_serving.compiler.imports.importing import ImportOptions, import_model
    from freshet_serving.compiler.imports.report_text import lines
    from freshet_serving.processor.repository import Keyring

    together = groups(ragged, "--ragged"), groups(sparse, "--sparse")
    options = ImportOptions(signature, *together, _samples(samples), user=user or (), translate=translate)
    console = Console()
    with console.status("importing"):
        imported = import_model(source, repository, name, version, options, Keyring.of_writer())
    passes, unjudged = (f"  pass {line}" for line in imported.passes), (f"  gate {line}" for line in imported.unjudged)
    for line in (*lines(imported.report), *passes, *unjudged):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{name} version {imported.folder.name} is in {repository}", highlight=False, soft_wrap=True)


def draw(source: Path, out: Path | None, signature: str) -> None:
    """Print the partition of the graph of a package, or of a model before its import, and draw it into an SVG file."""
    from freshet_serving.compiler.imports.report_svg import svg
    from freshet_serving.compiler.imports.report_text import lines, report_of

    report = report_of(source, signature)
    console = Console()
    for line in lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        if out.suffix != ".svg":
            raise BadInput(f"out: expected a file ending in .svg, got {out.name[:64]!r}")
        out.write_text(svg(report), encoding="utf-8")


def _samples(path: Path | None) -> dict[str, Any] | None:
    """Read sample inputs, the body of a predict request in TensorFlow Serving's column format, from a file."""
    if path is None:
        return None
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"samples: {path.name}: {error.strerror}{nearest_file(path)}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"samples: {path.name}: expected JSON, got: {error}") from None
    inputs = document.get("inputs") if isinstance(document, dict) else None
    if not isinstance(inputs, dict):
        raise BadInput('samples: expected {"inputs": {NAME: [rows]}}')
    return inputs


def groups(values: list[str] | None, option: str) -> dict[str, tuple[str, ...]]:
    """Parse NAME=A,B,... values of an option to a dict of name -> (A, B, ...). Raises BadInput."""
    parsed = {}
    for value in values or ():
        name, equals, members = value.partition("=")
        if not name or not equals or not members:
            raise BadInput(f"{option}: expected NAME=TENSOR,TENSOR, got {value[:80]!r}")
        parsed[name] = tuple(part.strip() for part in members.split(","))
    return parsed
