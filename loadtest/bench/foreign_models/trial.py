"""Import one built model by `freshet import`, serve it in process, compare it; what it finds is JSON."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.generation import OFF
from freshet_serving.processor.package import Input, Manifest
from freshet_serving.processor.repository import open_repository
from freshet_serving.serving.codecs.tensor_types import as_declared
from loadtest.bench.foreign_models.built import SPLITS, Arrays, BuiltModel, read_built
from loadtest.bench.foreign_models.row_copy import check_rows, publish_copies

WHOLE, STAGE = "whole", "with a stage"
PARTLY, WRONG, REFUSED, FAILED, UNBUILT = "partly", "wrong", "refused", "failed", "not built"
CLOSE = 1e-5
SAMPLES, IMPORT_S = 64, 300


def try_model(folder: Path, model: str) -> dict[str, Any]:
    """Try what a builder has left in <folder>/built; the repository is made beside it."""
    built = read_built(folder / "built")
    assert built is not None, "the builder has finished"
    repository = folder / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    found = run_import(built, repository, model)
    if found["message"]:
        return found | {"status": REFUSED}
    try:
        return found | served(built, repository, model)
    except FreshetError as error:
        return found | {"status": FAILED, "message": f"imported, not served: {error}"}


def run_import(built: BuiltModel, repository: Path, model: str) -> dict[str, Any]:
    """Import, with samples only where the importer asks for them."""
    kept = built.source.parent / "arguments.json"
    arguments = json.loads(kept.read_text()) if kept.exists() else []
    command = [sys.executable, "-m", "freshet_serving", "import", str(built.source), "--name", model, *arguments]
    command += ["--repository", str(repository)]
    samples = built.source.parent / "samples.json"
    for more in ([], ["--samples", str(samples)]):
        if more:
            samples.write_text(json.dumps({"inputs": as_json(built.inputs)}))
        began, used = time.monotonic(), _processor_s()
        try:
            done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=IMPORT_S)
            message = "" if done.returncode == 0 else _line(done.stderr or done.stdout)
        except subprocess.TimeoutExpired:
            message = f"the import was not done in {IMPORT_S} s"
        seconds, processor_s = time.monotonic() - began, _processor_s() - used
        if "--samples" not in message:
            break
    return {
        "message": message,
        "samples": bool(more),
        "seconds": round(seconds, 1),
        "processor_s": round(processor_s, 1),
    }


def served(built: BuiltModel, repository: Path, model: str) -> dict[str, Any]:
    """Serve the imported model, compare it with its framework, and check its tables."""
    manifest = open_repository(str(repository)).version(model, None).manifest
    config = ProcessorConfig(repository=str(repository), delta_guard=OFF)
    with Processor.initialize(config) as processor:

        def outputs(inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[np.float32]]:
            return processor.process(PredictRequest(model, columns(manifest, inputs))).outputs

        def ask(inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
            found = outputs(inputs)
            parts = [np.asarray(a, np.float32).reshape(len(a), -1) for _, a in sorted(found.items())]
            return np.concatenate(parts, axis=1)

        def publish() -> dict[str, str]:
            refused.update(publish_copies(str(repository), model, built.uses))
            processor.poll()
            return refused

        refused: dict[str, str] = {}
        compared = compare(as_declared(dict(outputs(built.inputs)), manifest), built.expected)
        copied = check_rows(ask, publish, built.inputs, built.uses)
    whole = any("whole model runs in" in note for note in manifest.notes["import"].get("notes", []))
    status = WRONG if not compared["close"] else PARTLY if compared["missing"] else STAGE if manifest.stage else WHOLE
    return compared | {
        "status": status,
        "stage": "whole" if whole else "part" if manifest.stage else "",
        "tables": len(manifest.tables),
        "refused_tables": refused,
        "row_copy": [asdict(row) for row in copied],
    }


def compare(got: Mapping[str, NDArray[Any]], expected: Arrays) -> dict[str, Any]:
    """Return the worst errors of the numbers, whether they are within 1e-5, and outputs that are not served."""
    wanted = {name: np.asarray(array) for name, array in expected.items()}
    served_names = {key_of(name): name for name in got}
    pairs = {name: served_names[key_of(name)] for name in wanted if key_of(name) in served_names}
    if not pairs and len(got) == len(wanted) == 1:
        # Frameworks name a single output as they like.
        pairs = {next(iter(wanted)): next(iter(got))}
    worst, relative, close = 0.0, 0.0, bool(pairs)
    for name, served_as in pairs.items():
        if wanted[name].dtype.kind in "OUS":
            close = close and np.array_equal(_texts(wanted[name]), _texts(got[served_as]))
            continue
        target = wanted[name].reshape(len(wanted[name]), -1).astype(np.float64)
        error = np.abs(np.asarray(got[served_as], np.float64).reshape(target.shape) - target)
        worst = max(worst, float(error.max()))
        relative = max(relative, float((error / np.maximum(np.abs(target), 1e-3)).max()))
        close = close and bool((error <= CLOSE + CLOSE * np.abs(target)).all())
    missing = sorted(wanted.keys() - pairs.keys())
    message = "" if close else "no output is served" if not pairs else f"differs by {worst:.2g}"
    if close and missing:
        message = f"without {', '.join(missing)}"
    return {"abs": worst, "rel": relative, "close": close, "missing": missing, "message": message}


def columns(manifest: Manifest, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    """Return the rows as the package's inputs take them."""
    named = {key_of(name): name for name in inputs if not name.endswith(SPLITS)}
    return {entry.name: column(entry, inputs, named[key_of(entry.name)]) for entry in manifest.inputs}


def key_of(name: str) -> str:
    """Return a name's letters and digits: packages may not contain all the characters of frameworks' names."""
    return re.sub(r"[^A-Za-z0-9]", "", name)


def column(entry: Input, inputs: Mapping[str, NDArray[Any]], name: str) -> Column:
    array = inputs[name]
    splits = inputs.get(name + SPLITS)
    if entry.ragged and splits is None:
        # A matrix of free length.
        splits = np.arange(len(array) + 1) * array.shape[1]
    flat = Strings.of(array.reshape(-1).tolist()) if entry.dtype == "string" else array.astype(entry.dtype)
    if splits is not None:
        values = flat if isinstance(flat, Strings) else flat.reshape(-1)
        return Ragged(values, splits.astype(np.int64))
    if isinstance(flat, Strings):
        return flat
    return flat.reshape(len(array), -1) if entry.columns else flat.reshape(-1)


def as_json(inputs: Arrays) -> dict[str, Any]:
    """Return the first rows as a request's JSON has them."""
    found = {}
    for name, array in inputs.items():
        if name.endswith(SPLITS):
            continue
        splits = inputs.get(name + SPLITS)
        rows = array[:SAMPLES] if splits is None else np.split(array, splits[1:-1])[:SAMPLES]
        found[name] = [row.tolist() for row in rows]
    return found


def _texts(array: NDArray[Any]) -> list[str]:
    found = array.tolist() if isinstance(array, (np.ndarray, Strings)) else list(array)
    return [text.decode() if isinstance(text, bytes) else str(text) for text in np.ravel(found).tolist()]


def _line(text: str) -> str:
    """Return the error as one line, without the machine's folders."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "no message")
    return re.sub(r"/\S*/", "", last)[:300]


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
