"""`make bench-quality`: AUC beside plain Keras on MovieLens-1M; loadtest/results/train-quality.md.

Rows in order of time: 80 % are learned, the next 10 % choose, the last 10 % are what is reported. Both sides have the
same network (Freshet's zoo builds it for both, with the same first weights), the same eight features, and up to three
epochs, of which the best on the choosing rows is kept. Freshet's settings are those that it chooses itself; Keras tries
rates of Adam and sizes of batches on one seed, and goes on with the best. It has an embedding for each id of the
learned rows and one for all others, and shuffles. `rated5` is a stand-in for a second label.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from compiler.building.auc import auc
from compiler.frameworks import keras, tf
from loadtest.reports.report import machine, opening, origin
from models.config.train_config import TrainConfig, parse_config
from models.data.movielens import MovieLensSource
from models.data.open_data import default_features
from models.data.source import Batch
from models.pipeline.ahead import Ahead
from models.training.defaults import chosen
from models.training.spec import draft, measure_log_odds, measure_scaling
from models.training.trainer import Trainer
from models.zoo.arch import build_arch
from models.zoo.dense_input import DenseInput
from processor.columns import Column, Ragged, Strings

RESULTS = Path(__file__).parents[2] / "results"
DATA = Path(os.environ.get("FRESHET_DATA", Path(__file__).parents[4] / "shared" / "data"))
ONE, TWO = ("rated4",), ("rated4", "rated5")
ARCHS = {"deepfm": ONE, "dcn": ONE, "dlrm": ONE, "mmoe": TWO, "esmm": TWO}
LEARNED, CHOSEN_ON = 0.8, 0.9
EPOCHS, SEEDS = 3, (0, 1, 2)
RATES, BATCHES = (0.001, 0.003), (512, 2048)
SCORED_ROWS = 8192

Float32s = NDArray[np.float32]


class Rows:
    """The stream, cut in three. features: sections of the training file."""

    def __init__(self, data: Path, labels: tuple[str, ...], rows: int) -> None:
        self.features = default_features("movielens", str(data))
        self.source = MovieLensSource(str(data), (), labels)
        count = min(rows or 1 << 62, self.source.count_rows())
        self.learned, self.chosen_on, self.all = round(count * LEARNED), round(count * CHOSEN_ON), count
        self.labels = labels

    def config(self, arch: str) -> TrainConfig:
        data = {"path": "-", "format": "movielens", "label": list(self.labels)}
        return parse_config({"model": {"name": "quality", "arch": arch}, "data": data, "features": self.features})

    def batches(self, rows: int, first: int, last: int) -> Iterator[Batch]:
        for batch in self.source.batches(rows, first):
            if batch.start >= last:
                return
            yield batch.slice(0, min(len(batch), last - batch.start))


def measured(batches: Iterator[Batch], score: Any) -> list[float]:
    """AUC by label of batches that score(batch) scores, [n] or [n, labels]."""
    labels, scores = [], []
    for batch in batches:
        labels.append(batch.label.reshape(len(batch), -1))
        scores.append(score(batch).reshape(len(batch), -1))
    label, scored = np.concatenate(labels), np.concatenate(scores)
    return [float(auc(label[:, k], scored[:, k])) for k in range(label.shape[1])]


def freshet_aucs(rows: Rows, arch: str, seed: int) -> tuple[list[float], int]:
    """(AUC by label on the last rows, epochs) of what `freshet train` chooses."""
    config = rows.config(arch)
    settings = replace(chosen(config.train, config.features, rows.learned), seed=seed)
    trainer = Trainer(draft(config, measure_scaling(rows.source, config.features)), settings, config.network)
    trainer.dense.begin_at(measure_log_odds(rows.source))
    best, found = (-1.0, 0), [0.0]
    for epoch in range(1, EPOCHS + 1):
        with Ahead(rows.batches(settings.batch_rows, 0, rows.learned), trainer.transform) as works:
            for work in works:
                trainer.learn(work)

        def score(batch: Batch) -> Float32s:
            return trainer.score(batch.columns)

        before = measured(rows.batches(SCORED_ROWS, rows.learned, rows.chosen_on), score)[0]
        if before > best[0]:
            best, found = (before, epoch), measured(rows.batches(SCORED_ROWS, rows.chosen_on, rows.all), score)
    return found, best[1]


class Vocabularies:
    """Ids of the learned rows by feature, as Keras' embeddings count them: 0 is no value, 1 any other."""

    def __init__(self, rows: Rows) -> None:
        known: dict[str, list[NDArray[Any]]] = {}
        for batch in rows.batches(1 << 16, 0, rows.learned):
            for name, column in batch.columns.items():
                known.setdefault(name, []).append(np.unique(_values(column)))
        self.known = {name: np.unique(np.concatenate(parts)) for name, parts in known.items()}
        self.longest: dict[str, int] = {}

    def encoded(self, rows: Rows, first: int, last: int) -> tuple[dict[str, NDArray[np.int32]], Float32s]:
        """Each feature int32 [n, values], and labels [n, labels]."""
        parts: dict[str, list[NDArray[np.int32]]] = {name: [] for name in self.known}
        labels = []
        for batch in rows.batches(1 << 16, first, last):
            labels.append(batch.label.reshape(len(batch), -1))
            for name, column in batch.columns.items():
                parts[name].append(self._encode(name, column))
        columns = {}
        for name, pieces in parts.items():
            width = self.longest.setdefault(name, max(piece.shape[1] for piece in pieces))
            cut = [np.pad(piece[:, :width], ((0, 0), (0, max(0, width - piece.shape[1])))) for piece in pieces]
            columns[name] = np.concatenate(cut)
        return columns, np.concatenate(labels)

    def _encode(self, name: str, column: Column) -> NDArray[np.int32]:
        values, known = _values(column), self.known[name]
        places = np.minimum(np.searchsorted(known, values), len(known) - 1)
        ids = np.where(known[places] == values, places + 2, 1).astype(np.int32)
        if not isinstance(column, Ragged):
            return ids[:, None]
        lengths = np.diff(column.row_splits)
        matrix = np.zeros((len(lengths), int(lengths.max(initial=1))), np.int32)
        matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = ids
        return matrix


def _values(column: Column) -> NDArray[Any]:
    if isinstance(column, Ragged):
        return _values(column.values)
    if isinstance(column, Strings):
        data, ends = column.data.tobytes(), column.offsets.tolist()
        return np.array([data[a:b] for a, b in zip(ends, ends[1:])], dtype="S")
    return column


def keras_network(rows: Rows, arch: str, vocabularies: Vocabularies, seed: int) -> keras.Model:
    """The zoo's network behind embeddings of Keras' own."""
    keras.utils.set_random_seed(seed)
    config = rows.config(arch)
    manifest = draft(config, {})
    inputs, parts = {}, []
    for feature in sorted(manifest.features, key=lambda f: f.offset):
        ids = inputs[feature.name] = keras.Input((None,), dtype="int32", name=feature.name)
        initial = keras.initializers.RandomUniform(-0.01, 0.01)
        rows_of = keras.layers.Embedding(len(vocabularies.known[feature.name]) + 2, feature.width, initial)(ids)
        there = keras.ops.cast(keras.ops.expand_dims(ids > 0, -1), "float32")
        total = keras.ops.sum(rows_of * there, axis=1)
        count = keras.ops.maximum(keras.ops.sum(there, axis=1), 1.0)
        parts.append(total / count if feature.combiner == "mean" else total)
    x = keras.ops.concatenate(parts, axis=1)
    built = build_arch(arch, DenseInput.from_features(manifest.features), {}, rows.labels, seed)
    return keras.Model(inputs, built.logits(x))


def keras_aucs(
    rows: Rows, arch: str, seed: int, vocabularies: Vocabularies, cut: Mapping[str, Any], rate: float, batch_rows: int
) -> tuple[list[float], int, float]:
    """(AUC by label on the last rows, epochs, AUC of the main label on the choosing rows)."""
    model = keras_network(rows, arch, vocabularies, seed)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
    best, found = (-1.0, 0), [0.0]
    for epoch in range(1, EPOCHS + 1):
        model.fit(*cut["learned"], batch_size=batch_rows, epochs=1, verbose=0)
        before = _keras_auc(model, *cut["chosen_on"])[0]
        if before > best[0]:
            best, found = (before, epoch), _keras_auc(model, *cut["last"])
    return found, best[1], best[0]


def _keras_auc(model: keras.Model, columns: Mapping[str, Any], labels: Float32s) -> list[float]:
    scores = model.predict(columns, batch_size=SCORED_ROWS, verbose=0)
    return [float(auc(labels[:, k], scores[:, k])) for k in range(labels.shape[1])]


def compared(arch: str, rows: Rows, console: Console) -> dict[str, Any]:
    """Both sides' AUC by seed and label, and what Keras was tuned to."""
    vocabularies = Vocabularies(rows)
    ends = {
        "learned": (0, rows.learned),
        "chosen_on": (rows.learned, rows.chosen_on),
        "last": (rows.chosen_on, rows.all),
    }
    cut = {name: vocabularies.encoded(rows, *part) for name, part in ends.items()}
    tried = {}
    for rate in RATES:
        for batch_rows in BATCHES:
            tried[rate, batch_rows] = keras_aucs(rows, arch, SEEDS[0], vocabularies, cut, rate, batch_rows)[2]
            console.print(f"  Keras, Adam {rate}, batch {batch_rows}: {tried[rate, batch_rows]:.4f}")
    rate, batch_rows = max(tried, key=lambda way: tried[way])
    result: dict[str, Any] = {"labels": rows.labels, "keras": f"Adam {rate}, batch {batch_rows}", "aucs": []}
    for seed in SEEDS:
        ours, epochs = freshet_aucs(rows, arch, seed)
        theirs, keras_epochs, _ = keras_aucs(rows, arch, seed, vocabularies, cut, rate, batch_rows)
        console.print(f"  seed {seed}: Freshet {ours} ({epochs} epochs), Keras {theirs} ({keras_epochs})")
        result["aucs"].append({"freshet": ours, "keras": theirs, "epochs": [epochs, keras_epochs]})
    return result


def page(results: dict[str, Any]) -> str:
    """train-quality.md."""
    lines = opening("Quality of training", __doc__, results)
    lines += [
        "| network | label | Freshet | Keras | difference, seeds | Keras' settings |",
        "|---|---|---:|---:|---|---|",
    ]
    for arch, result in results["archs"].items():
        for k, label in enumerate(result["labels"]):
            ours, theirs = ([one[side][k] for one in result["aucs"]] for side in ("freshet", "keras"))
            each = ", ".join(f"{a - b:+.4f}" for a, b in zip(ours, theirs))
            mean = statistics.mean(ours) - statistics.mean(theirs)
            lines.append(
                f"| `{arch}` | {label} | {statistics.mean(ours):.4f} | {statistics.mean(theirs):.4f}"
                f" | **{mean:+.4f}** ({each}) | {result['keras']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-quality", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=ARCHS, default=list(ARCHS), help="networks")
    add("--rows", type=int, default=0, help="the first so many; 0: all")
    add("--data", type=Path, default=DATA, help="folder with ml-1m; FRESHET_DATA")
    add("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, kept = Console(stderr=True, highlight=False), arguments.out / "train-quality.json"
    results = json.loads(kept.read_bytes()) if kept.exists() else {"archs": {}}
    results |= {"machine": machine(), "origin": origin("bench-quality", "BENCH_ARGS", sys.argv[1:])}
    tf.get_logger().setLevel("ERROR")
    for arch in arguments.only:
        console.print(f"[bold]{arch}[/bold]")
        results["archs"][arch] = compared(arch, Rows(arguments.data / "ml-1m", ARCHS[arch], arguments.rows), console)
        kept.write_text(json.dumps(results, indent=1) + "\n")
        (arguments.out / "train-quality.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
