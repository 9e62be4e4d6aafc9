"""LightGBM, XGBoost and CatBoost, through their exporters; the libraries give what is expected."""

from __future__ import annotations

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
LABEL = (VALUE > 0).astype(np.int64)
TYPES = [("X", FloatTensorType([None, COLUMNS]))]


def save(folder, exported, **expected):
    (Path(folder) / "model.onnx").write_bytes(exported.SerializeToString())
    write_built(Path(folder), {"X": X[:ROWS]}, expected)


def lightgbm_binary(folder):
    model = lightgbm.LGBMClassifier(n_estimators=500, num_leaves=31, verbose=-1).fit(X, LABEL)
    exported = convert_lightgbm(model, initial_types=TYPES, zipmap=False, target_opset=15)
    save(folder, exported, label=model.predict(X[:ROWS]), probabilities=model.predict_proba(X[:ROWS]))


def lightgbm_ranker(folder):
    grade = np.clip(np.floor(VALUE + 1), 0, 3).astype(np.int64)
    model = lightgbm.LGBMRanker(n_estimators=100, verbose=-1).fit(X, grade, group=[GROUP] * (LEARNED // GROUP))
    exported = convert_lightgbm(model, initial_types=TYPES, target_opset=15)
    save(folder, exported, variable=model.predict(X[:ROWS])[:, None])


def xgboost_binary(folder):
    model = xgboost.XGBClassifier(n_estimators=200, max_depth=5).fit(X, LABEL)
    exported = convert_xgboost(model, initial_types=TYPES, target_opset=15)
    save(folder, exported, label=model.predict(X[:ROWS]), probabilities=model.predict_proba(X[:ROWS]))


def xgboost_classes(folder):
    model = xgboost.XGBClassifier(n_estimators=50, max_depth=4).fit(X, np.clip(np.floor(VALUE + 2), 0, 3).astype(int))
    exported = convert_xgboost(model, initial_types=TYPES, target_opset=15)
    save(folder, exported, label=model.predict(X[:ROWS]), probabilities=model.predict_proba(X[:ROWS]))


def catboost_binary(folder):
    model = CatBoostClassifier(iterations=200, depth=6, verbose=False, allow_writing_files=False).fit(X, LABEL)
    _catboost(folder, model, label=model.predict(X[:ROWS]), probabilities=model.predict_proba(X[:ROWS]))


def catboost_regressor(folder):
    model = CatBoostRegressor(iterations=200, depth=6, verbose=False, allow_writing_files=False).fit(X, VALUE)
    _catboost(folder, model, predictions=model.predict(X[:ROWS])[:, None])


def _catboost(folder, model, **expected):
    model.save_model(str(Path(folder) / "model.onnx"), format="onnx")
    write_built(Path(folder), {"features": X[:ROWS]}, expected)
