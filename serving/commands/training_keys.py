"""What each key of a training file is for, in a line: the words of docs/reference/training-file.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.config.model_section import ModelConfig
from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.formats import DataConfig

ADAGRADS = "adagrad, adagrad_decay, ftrl"
CHOSEN = "[chosen](../how-to/choosing.md)"


@dataclass(frozen=True, slots=True)
class FileSection:
    """A section of the file. section: of TrainConfig; kind: what it is read into, None where its keys are the user's;
    keys: what each is for; made: fields that are no keys; defaults: in words, where it is no constant."""

    section: str
    title: str
    text: str
    kind: type[Any] | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)


MODEL = FileSection(
    "model",
    "[model]",
    "The options of the network stand here as well: [zoo.md](zoo.md#options) has them, or your own function's parameters.",
    ModelConfig,
    {
        "name": "its folder in the repository, and its name in requests",
        "arch": 'a network of the [zoo](zoo.md), or [your own](../how-to/own-architecture.md) as `"package.module:function"`',
        "loss": '[your own loss](../how-to/own-architecture.md#an-own-loss) as `"package.module:function"`',
        "label_weights": "of several labels, how much each counts",
    },
    made=("options",),
    defaults={"loss": "the log-loss", "label_weights": "all 1"},
)
DATA = FileSection(
    "data",
    "[data]",
    "What may be read, and how: [data.md](data.md).",
    DataConfig,
    {
        "path": "a file, a folder or a glob, from the working folder; of a stream its URL, `redis://...` or `kafka://...`",
        "format": "`parquet`, `csv`, `tfrecord`, `libsvm`, `criteo`, `movielens`, `redis`, `kafka`",
        "label": "the column of the label, 0 to 1; a list: several labels. Wanted for tables and streams",
        "time": "the column that the rows are sorted by; of tables and streams",
        "weight": "the column that says how much a row counts; of tables and streams",
        "follow": "go on with rows as they come, without an end: [following.md](../how-to/following.md)",
    },
    defaults={"format": "told by the suffix, or the URL"},
)
FEATURES = FileSection(
    "features",
    "[features.COLUMN]",
    "A section a feature, named as its column. Formats whose columns are known need none.",
    FeatureConfig,
    {
        "kind": "`id`, `string`, `float`, `ids` (a list of ids), `strings`",
        "table": "its embedding table; features that name the same one share its rows",
        "dim": "floats a row of the table",
        "side": "whose it is: `user`, `item` or `context`; what is the user's is computed once a request",
        "combiner": "of lists, how many rows become one: `sum`, `mean`, `sqrtn`; `none`: side by side, and a mask",
        "max_length": "of lists, only the first so many values count; 0: all",
        "transform": "of a float `none` or `log1p`; `hour`, `weekday` and `bucketize` make ids of it",
        "dtype": "what its table is published as: `float32`, `float16`, `bfloat16`, `int8`",
        "from": "the column that it is made of",
        "boundaries": "of `bucketize`, ascending",
        "cross": "2 to 16 features: an id for each combination of the row's values",
        "buckets": "of `cross`: how many ids there are",
    },
    made=("name", "column_kind"),
    defaults={
        "table": "the feature's name",
        "dim": "`16`",
        "dtype": "`publish.table_dtype`",
        "transform": CHOSEN,
        "from": "the feature's name",
        "buckets": "`1000000`",
    },
)
TRAIN = FileSection(
    "train",
    "[train]",
    "How rows and network learn. What is left out of optimizer, rates and batch is chosen by features and rows, and said.",
    TrainSettings,
    {
        "epochs": "how often the full version's rows are learned",
        "optimizer": "of the embeddings: `adagrad`, `adagrad_decay`, `adam`, `adamw`, `ftrl`, `sgd`",
        "batch_rows": "rows a step",
        "learning_rate": "of the embeddings; sgd has no default",
        "dense_learning_rate": "of the network",
        "holdout": "the last share of the rows, kept from training to measure on",
        "shuffle_rows": "of the full version, so many are mixed with each other in every epoch; 0: learned in order",
        "schedule": "of all rates: `constant`, `linear`, `cosine`, `exponential`",
        "warmup_steps": "rates grow from nothing in the first so many steps",
        "schedule_steps": "the rates have fallen after so many steps",
        "schedule_end": "what of them is left then, and stays for the stream",
        "clip_norm": "the gradient of a row is at most so long; 0: any",
        "dense_clip_norm": "so is the network's; 0: any",
        "dense_weight_decay": "of the network, decoupled",
        "patience": "epochs end when so many have not been better on the held-out rows; 0: never",
        "stop_by": "what is better: `auc`, `log_loss`",
        "wire": "rows and gradients between processes: `float32`, `float16` ([processes.md](../how-to/processes.md))",
        "seed": "of everything that is drawn, so that runs repeat; left out: 0, and the seeds of strings' hashes are"
        " secret and new in each run ([strings](../how-to/train.md#strings))",
        "initial_accumulator": f"where the squares begin that are added up ({ADAGRADS})",
        "l1": "rows that hardly matter become zero (ftrl)",
        "l2": "of the embeddings (ftrl)",
        "beta": "added to the root of the squares (ftrl)",
        "weight_decay": "a row loses so much of itself at each of its steps, times the rate (adamw)",
        "accumulator_decay": "what is left of the squares after `decay_steps` (adagrad_decay)",
        "decay_steps": "steps of the run (adagrad_decay)",
    },
    defaults={
        "optimizer": CHOSEN,
        "learning_rate": CHOSEN,
        "dense_learning_rate": CHOSEN,
        "batch_rows": CHOSEN,
        "initial_accumulator": f"{CHOSEN}; 0.1 with a named optimizer",
        "schedule_steps": "with the full version",
        "seed": "none",
    },
)
PUBLISH = FileSection(
    "publish",
    "[publish]",
    "Where versions go, and when deltas. One of the three rules for deltas is enough; a followed stream without any has"
    " `delta_seconds = 10`.",
    PublishConfig,
    {
        "repository": "the folder of models, or an address such as `s3://bucket/prefix` ([object-stores.md](../how-to/object-stores.md))",
        "full_rows": "these many rows, in order, make the full version; 0: all, of a followed stream those that are there",
        "delta_rows": "then a delta every so many rows; 0: none",
        "delta_seconds": "and at the latest so many seconds after the last one; 0: never",
        "table_dtype": "what tables are published as: `float32`, `float16`, `bfloat16`, `int8`",
        "snapshot_after": "after so many deltas the chain is folded into a snapshot; 0: never",
        "delta_movement": "a delta once the network's weights have moved by this share of their norm; 0: never",
        "version_rows": "a new full version after so many rows of deltas; 0: never",
        "version_seconds": "or after so many seconds; 0: never",
        "keep_versions": "full versions of this model that stay, older ones go ([following.md](../how-to/following.md#old-versions)); 0: all",
        "precision": "what servers compute the network in: `float32`, `int8`, `auto`"
        " ([backends.md](../how-to/backends.md#precision))",
        "max_error": "how far scores in int8 may be off",
        "max_auc_change": "and their AUC",
        "trainer_folder": "the trainer's own files: checkpoints, the journal of a stream, reports of runs",
        "key": "the private key that signs what is published ([signing.md](../how-to/signing.md)); empty: `FRESHET_KEY`, or nobody",
    },
    defaults={"trainer_folder": "`repository`; where that is an address, `trainer/<bucket>/<prefix>`"},
)
FUSION = FileSection(
    "fusion",
    "[fusion]",
    "Further outputs, each a name and an expression over the network's outputs and float features:"
    ' `final = "score ** 0.9 * price"`. A delta may change the numbers in it ([passes.md](../concepts/passes.md)).',
)
TABLES = FileSection(
    "tables",
    "[tables.NAME]",
    "What a table has for itself, which [sparing-rows.md](../how-to/sparing-rows.md) explains. Also `optimizer`,"
    " `learning_rate` and the optimizer's keys of [train], for this table alone; another `optimizer` without a"
    " `learning_rate` has that of [train], and of adam and adamw a tenth of what the others have.",
    TableConfig,
    {
        "admit_after": "an id has a row once it came so often; twice in one batch is two times. 1: at once",
        "admit_by": "who counts: `counts`, a counter for each id that waits, about 40 bytes each; `bloom`, shared"
        " counters of a fixed size, which forget nothing",
        "admit_ids": "of `bloom`: for how many different ids it is made",
        "admit_error": "of `bloom`: the share of these that may be admitted too early; none is too late. A million ids"
        " at 0.01 take 23 MB",
        "evict_after_steps": "rows that no batch has had for more steps are removed with the next version or delta; 0: never",
        "evict_below_norm": "so are rows whose L2 norm is below this; 0: never",
        "init": "the first value of a row: `uniform` from `-init_scale` to `init_scale`, `normal` of that standard"
        " deviation, `zeros`. It is a function of `train.seed` and the id alone",
        "init_scale": "how large it is",
        "memory_mb": "MiB of rows, slots and books in memory, the other rows are on disk"
        " ([training.md](../concepts/training.md#tables-larger-than-memory)); 0: all in memory. May change between two runs",
        "cache": "with `memory_mb`, which rows stay: `lfu` those read most often, `lru` those read last",
        "hash": "`none`: a row an id. `quotient_remainder`, `k_way`, `binary_code`: a fixed number of rows, of which"
        " every id has several, added up",
        "hash_rows": "how many rows a hashed table has at most. With `hash` left out it is hashed only if it has more ids",
        "hash_codes": "how many rows an id has",
    },
    made=("train",),
    defaults={
        "hash": "left out",
        "hash_rows": "",
        "hash_codes": "2 of `k_way`, by `hash_rows` of `binary_code`",
    },
)
EVALUATE = FileSection(
    "evaluate",
    "[evaluate]",
    "What is measured of held-out rows, and by `freshet evaluate` ([evaluation.md](../how-to/evaluation.md)).",
    EvaluateConfig,
    {
        "by": "metrics by the values of these columns, features or not",
        "group": "AUC within its groups",
    },
    defaults={"group": "the first id or string of side `user`"},
)
GUARD = FileSection(
    "guard",
    "[guard]",
    "When a followed run holds its deltas back ([following.md](../how-to/following.md#the-guard)).",
    GuardConfig,
    {
        "enabled": "whether windows are judged at all",
        "auc_drop": "nothing is held for a fall of AUC below this",
        "calibration": "nor for a mean score off the mean label by less than this share",
        "loss_rise": "nor for a log-loss of rows learned before that rises by less than this share",
        "sigmas": "how many times its usual spread a figure has to be off",
        "first_windows": "so many are only learned from where no held-out rows say what is usual",
        "release_windows": "so many in line again release what is held; 0: only you do",
    },
)
SECTIONS = (MODEL, DATA, FEATURES, TRAIN, PUBLISH, FUSION, TABLES, EVALUATE, GUARD)
