"""Plain Keras in the quality race: the zoo's network behind embeddings of Keras' own, learned by Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freshet_serving.compiler.building.auc import auc
from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.training.spec import draft
from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from loadtest.bench.training.quality_rows import Float32s, QualityRows, Run, best_epoch

SCORED_ROWS = 8192


def keras_run(
    rows: QualityRows, arch: str, labels: tuple[str, ...], way: Mapping[str, Any], seed: int, epochs: int
) -> Run:
    model = keras_network(rows, arch, labels, seed)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(way["rate"]), loss, jit_compile=True)
    parts = {part: rows.coded(part, len(labels)) for part in rows.parts}

    def learn() -> None:
        model.fit(*parts["learned"], batch_size=way["batch"], epochs=1, verbose=0)

    return best_epoch(learn, lambda part: _aucs(model, *parts[part]), epochs)


def keras_network(rows: QualityRows, arch: str, labels: tuple[str, ...], seed: int) -> keras.Model:
    """Of ids by feature (QualityRows.coded), the labels' logits."""
    keras.utils.set_random_seed(seed)
    manifest = draft(rows.config(arch, labels), {})
    inputs, parts = {}, []
    for feature in sorted(manifest.features, key=lambda f: f.offset):
        ids = inputs[feature.name] = keras.Input((None,), dtype="int32", name=feature.name)
        initial = keras.initializers.RandomUniform(-0.01, 0.01)
        read = keras.layers.Embedding(rows.sizes[feature.name], feature.width, initial)(ids)
        there = keras.ops.cast(keras.ops.expand_dims(ids > 0, -1), "float32")
        total = keras.ops.sum(read * there, axis=1)
        count = keras.ops.maximum(keras.ops.sum(there, axis=1), 1.0)
        parts.append(total / count if feature.combiner == "mean" else total)
    x = keras.ops.concatenate(parts, axis=1)
    built = build_arch(arch, DenseInput.from_features(manifest.features), {}, labels, seed)
    return keras.Model(inputs, built.logits(x))


def _aucs(model: keras.Model, columns: Mapping[str, Any], labels: Float32s) -> list[float]:
    scores = model.predict(columns, batch_size=SCORED_ROWS, verbose=0)
    return [float(auc(labels[:, k], scores[:, k])) for k in range(labels.shape[1])]
