"""Models of scikit-learn, through skl2onnx; scikit-learn gives what is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from loadtest.bench.foreign_models.built import ROWS, write_built

LEARNED, COLUMNS = 1000, 6
random = np.random.default_rng(3)
X = random.standard_normal((LEARNED, COLUMNS)).astype(np.float32)
LABEL = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(np.int64)


def save(folder, model, types, inputs, expected, options=None):
    exported = to_onnx(model, initial_types=types, options=options, target_opset=17)
    (Path(folder) / "model.onnx").write_bytes(exported.SerializeToString())
    write_built(Path(folder), inputs, expected)


def classifier(folder, model, label=LABEL):
    model.fit(X, label)
    rows = X[:ROWS]
    expected = {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}
    expected["label"] = expected["label"].astype(str) if expected["label"].dtype.kind in "OU" else expected["label"]
    types = [("X", FloatTensorType([None, COLUMNS]))]
    save(folder, model, types, {"X": rows}, expected, {id(model): {"zipmap": False}})


def sklearn_logistic(folder):
    classifier(folder, make_pipeline(StandardScaler(), LogisticRegression()))


def sklearn_forest(folder):
    classifier(folder, RandomForestClassifier(100, max_depth=6, random_state=1))


def sklearn_labels(folder):
    names = np.array(["leaves", "stays", "unsure"])
    label = names[np.where(np.abs(X[:, 0]) < 0.3, 2, LABEL)]
    classifier(folder, GradientBoostingClassifier(n_estimators=50, random_state=1), label)


def sklearn_one_hot(folder):
    cities = random.choice(["Oslo", "La Paz", "Zürich", "東京"], (LEARNED, 2))
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    model.fit(cities, (cities[:, 0] == "Oslo").astype(np.int64) ^ (cities[:, 1] == "東京"))
    rows = cities[:ROWS]
    expected = {"label": model.predict(rows).astype(np.int64), "probabilities": model.predict_proba(rows)}
    types = [("cities", StringTensorType([None, 2]))]
    save(folder, model, types, {"cities": rows}, expected, {id(model): {"zipmap": False}})


def sklearn_mlp(folder):
    frame = pd.DataFrame({"price": X[:, 0], "age": X[:, 1], "shop": random.integers(0, 5, LEARNED)})
    columns = ColumnTransformer(
        [("floats", StandardScaler(), ["price", "age"]), ("shop", OneHotEncoder(), ["shop"])], sparse_threshold=0
    )
    model = make_pipeline(columns, MLPRegressor(hidden_layer_sizes=(16,), max_iter=300, random_state=1))
    model.fit(frame, X[:, 0] * X[:, 1] + frame["shop"])
    rows = frame[:ROWS]
    types = [(name, FloatTensorType([None, 1])) for name in ("price", "age")] + [("shop", Int64TensorType([None, 1]))]
    inputs = {name: rows[[name]].to_numpy() for name in ("price", "age", "shop")}
    save(folder, model, types, inputs, {"variable": model.predict(rows)[:, None]})
