"""Entries of models that the zoo trains, and of what happens to a chain: deltas, rollbacks, snapshots, holds, keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from freshet_serving.compiler.building.calibrate import Tolerance
from freshet_serving.compiler.building.recompile import CompileOptions, compile_version
from freshet_serving.compiler.frameworks import keras
from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.sequence_columns import with_sequences
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.zoo.arch import Arch
from freshet_serving.processor.package.delta import Delta, TableDelta, write_delta
from tests.corpus.clicks import Clicks, inputs_of, spread
from tests.corpus.story import LOWER_PRECISION, MODEL, Story, requests_of

TEST_KEY = Path(__file__).parent / "keys" / "TEST-ONLY.key"
FULL_ROWS, DELTA_ROWS = 512, 64
ROWS = 8
"""Of a request, and of the one bucket that there is for it."""
CANDIDATES = 64
"""From so many rows on a graph is divided into a user's and a candidates' part."""
DIVIDED = ("whole", "parts")
FEATURES: dict[str, dict[str, Any]] = {
    "user": {"kind": "id", "dim": 8, "side": "user"},
    "item": {"kind": "id", "dim": 8, "side": "item"},
    "city": {"kind": "string", "dim": 4, "side": "user"},
    "history": {"kind": "ids", "dim": 8, "table": "item", "side": "user", "combiner": "sqrtn", "max_length": 5},
    "tags": {"kind": "strings", "dim": 4, "side": "item", "combiner": "mean", "max_length": 3},
    "price": {"kind": "float", "transform": "log1p", "side": "item"},
    "age": {"kind": "float", "side": "user"},
}
USER_COLUMNS = [name for name, feature in FEATURES.items() if feature["side"] == "user"]
CROSSES: dict[str, dict[str, Any]] = {
    "user": {"kind": "id", "dim": 8, "side": "user"},
    "item": {"kind": "id", "dim": 8, "side": "item"},
    "city": {"kind": "string", "dim": 4, "side": "user"},
    "city_item": {"cross": ["city", "item"], "buckets": 64, "dim": 4},
    "price": {"kind": "float", "transform": "none", "side": "item"},
    "price_band": {"transform": "bucketize", "from": "price", "boundaries": [4.0, 8.0, 16.0], "dim": 4},
    "weekday": {"transform": "weekday", "dim": 4},
    "hour": {"transform": "hour", "dim": 4},
    "tags": {"kind": "strings", "dim": 4, "side": "item", "combiner": "none", "max_length": 3},
}
RANKED = {name: FEATURES[name] for name in ("user", "item", "price")}
"""Beside a history."""
HISTORY: dict[str, Any] = {"tables": {"item": "item"}, "dim": 4, "max_length": 8}
"""Of [sequences.history], beside its columns."""
DEPTH = {"units": 8, "layers": 2}
NO_EVENTS: dict[str, Any] = {"shape": [0], "values": [], "row_splits": [0, 0]}
"""Of one user's column, in a request."""
ROW_TYPES = {"user": "float16", "item": "int8", "city": "bfloat16", "history": "int8", "tags": "float32"}

LEARNING = {"batch_rows": 64, "seed": 3, "optimizer": "adagrad", "learning_rate": 0.1}
GENTLE = LEARNING | {"learning_rate": 0.02}
"""Leaves a lower precision little to be off by."""
COMPILED_WITHIN = 2e-3
"""Of float32, over all rows of practice; recorded requests keep to half of it, as a test says."""


class Training:
    """A run of `freshet train` into a story's repository: its full version at once, then a delta whenever it is asked.

    Requests of the story are of its rows: some with a row for each candidate, some with one user for all of them.
    """

    def __init__(
        self,
        story: Story,
        arch: str,
        features: dict[str, dict[str, Any]] = FEATURES,
        columns: Sequence[str] = (),
        labels: int = 1,
        rows: int = ROWS,
        ways: tuple[str, ...] = ("",),
        options: dict[str, Any] | None = None,
        publish: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        """columns: of the rows, by default those of the features' names. rows: of a request. options: more of [model].
        publish: more of [publish]. sections: others of the file; a request has the columns of its sequences, too.
        """
        names = list(columns or features)
        publish_keys = {"repository": str(story.repository), "full_rows": FULL_ROWS, "delta_rows": DELTA_ROWS}
        config = {
            "model": {"name": MODEL, "arch": arch, "hidden": [16, 8]} | (options or {}),
            "data": {
                "path": "x",
                "format": "csv",
                "time": "time",
                "label": ["click", "buy"] if labels == 2 else "click",
            },
            "features": features,
            "train": LEARNING,
            "publish": publish_keys | {"key": str(story.signing_key or "")} | (publish or {}),
            "guard": {"enabled": False},
            **sections,
        }
        parsed = parse_config(config)
        sent = {f.reads.name: f.name for f in parsed.features if f.sequence and f.reads}
        names += sent
        source = with_sequences(Clicks(FULL_ROWS + 8 * DELTA_ROWS, names, labels), parsed.features)
        self._run = TrainingRun(parsed, source)
        with patch(
            "freshet_serving.models.training.full_versions.publish_version", partial(publish_version, buckets=(rows,))
        ):
            self._run.full()
        self._deltas = self._run.stream()
        once = [name for name in names if name in USER_COLUMNS or name in sent]

        def inputs(seed: int, once: Sequence[str] = ()) -> dict[str, Any]:
            return {sent.get(name, name): column for name, column in inputs_of(rows, names, seed, once).items()}

        story.requests += requests_of("rows", inputs(1))
        story.requests += requests_of("one user", inputs(2, once), ways)

    def tell(self, story: Story, deltas: int = 1) -> None:
        """Tell of the version, and of as many deltas, learned and published one after another."""
        story.moment("published")
        for number in range(1, deltas + 1):
            self.delta()
            story.moment(f"delta {number}")

    def delta(self) -> None:
        next(self._deltas)


def deepfm(story: Story) -> None:
    training = Training(story, "deepfm")
    training.tell(story, 2)
    story.roll_back(1, "the second was a mistake")
    story.moment("rolled back to 1")
    training.delta()
    story.moment("delta 3")


def wide_deep(story: Story) -> None:
    columns = ["user", "item", "city", "price", "tags", "time"]
    hashed = {"item": {"hash": "quotient_remainder", "hash_rows": 24}}
    Training(story, "wide_deep", CROSSES, columns, tables=hashed).tell(story)


def dcn(story: Story) -> None:
    Training(story, "dcn").tell(story)


def mmoe(story: Story) -> None:
    options = {"experts": 2, "tower": [4]}
    Training(story, "mmoe", labels=2, options=options, fusion={"final": "click ** 1.0 * buy ** 0.5"}).tell(story)


def esmm(story: Story) -> None:
    Training(story, "esmm", labels=2).tell(story)


def two_tower(story: Story) -> None:
    Training(story, "two_tower", options={"vector_dim": 4, "similarity": "cosine"}).tell(story)


def user_once(story: Story) -> None:
    training = Training(story, "deepfm", rows=CANDIDATES, ways=DIVIDED, options={"hidden": [64, 16]})
    if not story.version.manifest.graphs:
        raise ValueError("the graph was not divided")
    training.tell(story)


def histories(story: Story) -> None:
    columns = {"item": "seen_items", "action": "seen_actions"}
    history = HISTORY | {"columns": columns, "floats": {"watched": "seen_seconds"}}
    training = Training(
        story, "stca", RANKED, rows=CANDIDATES, ways=DIVIDED, options=DEPTH, sequences={"history": history}
    )
    if not story.version.manifest.graphs:
        raise ValueError("the graph was not divided")
    inputs = story.requests[-1].inputs
    no_events = {name: column | NO_EVENTS if name.startswith("history.") else column for name, column in inputs.items()}
    story.requests += requests_of("user without events", no_events, ("parts",))
    training.tell(story)
    story.roll_back(0, "the first was a mistake")
    story.moment("rolled back to 0")
    training.delta()
    story.moment("delta 2")


def histories_timed(story: Story) -> None:
    history = HISTORY | {"columns": {"item": "seen_items"}, "time": "seen_ms", "time_unit": "ms"}
    Training(story, "hstu", RANKED, options=DEPTH, sequences={"history": history}).tell(story)


def row_types(story: Story) -> None:
    """Tables of every row type, folded: what was narrowed once is copied as it is stored."""
    features = {name: {**f, "dtype": ROW_TYPES[name]} if name in ROW_TYPES else f for name, f in FEATURES.items()}
    Training(story, "dlrm", features, options={"bottom": [8], "hidden": [16]}).tell(story)
    publisher = Publisher(story.repository, MODEL)
    publisher.publish(removed={"user": spread(np.arange(0, 60, 3)), "tags": ["tag 1", "tag 2"]})
    story.moment("rows removed")
    story.compact()
    story.moment("folded")
    Publisher(story.repository, MODEL).publish(rows={"item": (spread([1, 2, 3]), np.full((3, 8), 0.25))})
    story.moment("delta 3")
    story.roll_back(1, "to before the snapshot")
    story.moment("rolled back to 1")


def columns(story: Story) -> None:
    """Scores hide the last bits of what they are computed from; here the dense graph's input is an output."""
    _columns(story, CROSSES | {name: f for name, f in FEATURES.items() if name not in CROSSES})


def columns_row_types(story: Story) -> None:
    _columns(story, {name: {**f, "dtype": ROW_TYPES[name]} if name in ROW_TYPES else f for name, f in FEATURES.items()})


def exposed(layout: Any, hidden: Sequence[int] = (8,), seed: int = 0) -> Any:
    """An architecture for `arch = "tests.corpus.zoo:exposed"`: a score, and beside it the columns that it reads."""
    x = keras.Input((layout.width,), name="x")
    logit = keras.layers.Dense(1, name="out", kernel_initializer=keras.initializers.GlorotUniform(seed))(x)
    scores = {"score": keras.ops.sigmoid(logit), "columns": x * 1.0}
    return Arch(keras.Model(x, logit, name="exposed"), keras.Model(x, scores, name="exposed_scores"))


def held(story: Story) -> None:
    """A gate before a delta, lifted; another one, whose delta is undone."""
    Training(story, "deepfm")
    story.moment("published")
    _publish(story, 0.2)
    story.moment("delta 1")
    story.change_log.hold("scores moved too far")
    _publish(story, 0.4)
    story.moment("delta 2 held")
    story.change_log.release("looked at, and good")
    story.moment("delta 2 released")
    story.change_log.hold("scores moved too far again")
    _publish(story, -0.8)
    story.moment("delta 3 held")
    story.reject("looked at, and bad")
    story.moment("delta 3 rejected")
    _publish(story, 0.6)
    story.moment("delta 4")


def signed(story: Story) -> None:
    Training(story, "deepfm").tell(story, 2)
    story.compact()
    story.moment("folded")
    story.roll_back(1, "the second was a mistake")
    story.moment("rolled back to 1")


def first_format(story: Story) -> None:
    """Deltas as they were before there were records: files alone."""
    Training(story, "deepfm")
    story.moment("published")
    for step in (1, 2, 3):
        keys = spread(np.arange(step, 60, 4))
        tables = {"user": TableDelta(keys, _rows(keys, step), np.empty(0, np.int64))}
        bias = {name: array + np.float32(step / 8) for name, array in story.version.dense().items() if "out" in name}
        delta = Delta(MODEL, 1, step, step - 1, tables, bias, published_at=1_700_000_000.0 + step)
        write_delta(story.version.folder / "deltas" / f"{step}.safetensors", delta)
        story.moment(f"delta {step}")


def int8(story: Story) -> None:
    lower = {"precision": "int8", "max_error": LOWER_PRECISION / 2, "max_auc_change": 1.0}
    features = {name: feature for name, feature in FEATURES.items() if feature["kind"] != "float"}
    training = Training(story, "deepfm", features, options={"hidden": [64, 32]}, publish=lower)
    _computes_in(story, "int8")
    training.tell(story)


def bfloat16(story: Story) -> None:
    training = Training(story, "deepfm", train=GENTLE)
    bound = Tolerance(COMPILED_WITHIN, 1.0)
    _compile(story, CompileOptions(("openvino:bfloat16", "openvino:float32"), "bfloat16", (ROWS,), bound=bound))
    _computes_in(story, "bfloat16")
    training.tell(story)


def xla(story: Story) -> None:
    training = Training(story, "deepfm")
    _compile(story, CompileOptions(("xla",), "float32", (ROWS,)))
    training.tell(story)


def _columns(story: Story, features: dict[str, dict[str, Any]]) -> None:
    names = [*FEATURES, "time"] if "hour" in features else list(FEATURES)
    Training(story, "tests.corpus.zoo:exposed", features, names).tell(story, 2)


def _compile(story: Story, options: CompileOptions) -> None:
    compile_version(story.version.folder, options, SilentReporter())


def _computes_in(story: Story, precision: str) -> None:
    chosen = [entry.precision for entry in story.version.manifest.executables]
    if chosen[0] != precision:
        raise ValueError(
            f"expected executables of {precision}, got {', '.join(chosen)}: {story.version.manifest.notes}"
        )


def _publish(story: Story, shift: float) -> None:
    keys = spread(np.arange(0, 60, 2))
    Publisher(story.repository, MODEL).publish(rows={"user": (keys, _rows(keys, 0) + np.float32(shift))}, events=100)


def _rows(keys: np.ndarray, seed: int) -> np.ndarray:
    rows = np.random.default_rng([5, seed]).standard_normal((len(keys), FEATURES["user"]["dim"]))
    return (rows / 4).astype(np.float32)
