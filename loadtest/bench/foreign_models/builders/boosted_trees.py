"""LightGBM, XGBoost and CatBoost, through their exporters; the libraries give what is expected."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import lightgbm
import numpy as np
import xgboost
from catboost import CatBoostClassifier, CatBoostRegressor
from onnxmltools.convert import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from loadtest.bench.foreign_models.built import ROWS, write_built

LEARNED, COLUMNS, GROUP = 2000, 10, 20
random = np.random.default_rng(5)
X = random.standard_normal((LEARNED, COLUMNS)).astype(np.float32)
VALUE = X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * random.standard_normal(LEARNED)
LABEL, CLASSES = (VALUE > 0).astype(np.int64), np.clip(np.floor(VALUE + 2), 0, 3).astype(int)
TYPES = [("X", FloatTensorType([None, COLUMNS]))]


def save(folder, exported, **expected):
    (Path(folder) / "model.onnx").write_bytes(exported.SerializeToString())
    write_built(Path(folder), {"X": X[:ROWS]}, expected)


def classifier(model, convert, folder, label=LABEL, **options):
    model.fit(X, label)
    exported = convert(model, initial_types=TYPES, target_opset=15, **options)
    save(folder, exported, label=model.predict(X[:ROWS]), probabilities=model.predict_proba(X[:ROWS]))


def lightgbm_ranker(folder):
    grade = np.clip(np.floor(VALUE + 1), 0, 3).astype(np.int64)
    model = lightgbm.LGBMRanker(n_estimators=100, verbose=-1).fit(X, grade, group=[GROUP] * (LEARNED // GROUP))
    exported = convert_lightgbm(model, initial_types=TYPES, target_opset=15)
    save(folder, exported, variable=model.predict(X[:ROWS])[:, None])


def catboost(kind, target, folder):
    model = kind(iterations=200, depth=6, verbose=False, allow_writing_files=False).fit(X, target)
    if kind is CatBoostRegressor:
        expected = {"predictions": model.predict(X[:ROWS])[:, None]}
    else:
        expected = {"label": model.predict(X[:ROWS]), "probabilities": model.predict_proba(X[:ROWS])}
    model.save_model(str(Path(folder) / "model.onnx"), format="onnx")
    write_built(Path(folder), {"features": X[:ROWS]}, expected)


LEAVES = lightgbm.LGBMClassifier(n_estimators=500, num_leaves=31, verbose=-1)
DEEP, SHALLOW = (xgboost.XGBClassifier(n_estimators=n, max_depth=depth) for n, depth in ((200, 5), (50, 4)))
MODELS = {
    "lightgbm_binary": partial(classifier, LEAVES, convert_lightgbm, zipmap=False),
    "xgboost_binary": partial(classifier, DEEP, convert_xgboost),
    "xgboost_classes": partial(classifier, SHALLOW, convert_xgboost, label=CLASSES),
    "catboost_binary": partial(catboost, CatBoostClassifier, LABEL),
    "catboost_regressor": partial(catboost, CatBoostRegressor, VALUE),
}
