"""Seventy mistakes that people make with commands, files and requests, each with what the one line of the answer has to
hold: what was wrong, what was met, and what to do. `test_mistakes.py` makes them and counts those that are answered.

The list was committed before the messages were worked on. `expected` holds parts of the line, in any order; letters'
case counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

TRAIN = """\
[model]
name = "tiny"
arch = "deepfm"
[data]
path = "clicks.parquet"
label = "clicked"
time = "ts"
[features.user]
kind = "id"
side = "user"
[features.item]
kind = "id"
[features.price]
kind = "float"
[publish]
repository = "out"
full_rows = 30
delta_rows = 10
"""
CSV = "user,item,price,ts,clicked\n" + "".join(f"{n % 7},{n % 5},{n}.5,{1000 + n},{n % 2}\n" for n in range(40))


@dataclass(frozen=True)
class Command:
    """A command line, typed in a folder that holds these files and those of `test_mistakes.workspace`. trainer: another
    trainer of the same model is at work."""

    name: str
    line: str
    expected: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    trainer: bool = False


@dataclass(frozen=True)
class Request:
    """A request to a running server's port: "data", "admin" or "grpc". body: JSON, or text that is none."""

    name: str
    port: str
    method: str
    path: str
    expected: tuple[str, ...]
    body: Any = None


def training(name: str, old: str, new: str, *expected: str, **files: str | bytes) -> Command:
    """A training file with one mistake in it."""
    assert old in TRAIN
    return Command(
        name,
        "train --config wrong.toml",
        expected,
        {"wrong.toml": TRAIN.replace(old, new, 1), **{key.replace("__", "."): text for key, text in files.items()}},
    )


def table(name: str, csv: str | bytes, *expected: str) -> Command:
    """A CSV file with one mistake in it."""
    return training(name, '"clicks.parquet"', '"wrong.csv"', *expected, wrong__csv=csv)


TRAINING_FILES = (
    Command(
        "training file misspelled",
        "train --config trian.toml",
        ("trian.toml", "No such file", "did you mean 'train.toml'"),
    ),
    Command("training file is a Parquet file", "train --config clicks.parquet", ("clicks.parquet", "TOML", "Parquet")),
    Command("training file left out", "train", ("--config",)),
    training("section misspelled", "[model]", "[modle]", "modle", "did you mean 'model'"),
    training("key misspelled", "full_rows", "full_row", "publish.full_row", "did you mean 'full_rows'"),
    training("text for a number", "full_rows = 30", 'full_rows = "30"', "publish.full_rows", "integer", "string"),
    training("unknown kind", 'kind = "float"', 'kind = "flaot"', "features.price.kind", "did you mean 'float'"),
    training("unknown network", '"deepfm"', '"depfm"', "model.arch", "'depfm'", "did you mean 'deepfm'"),
    training("TOML without quotes", 'name = "tiny"', "name = tiny", "wrong.toml", "line 2", "quotes"),
    training("data misspelled", "clicks.parquet", "clicks.parqet", "clicks.parqet", "did you mean 'clicks.parquet'"),
    training("label misspelled", '"clicked"', '"cliked"', "'cliked'", "did you mean 'clicked'"),
    training("feature misspelled", "[features.item]", "[features.itme]", "'itme'", "did you mean 'item'"),
    training("time misspelled", 'time = "ts"', 'time = "st"', "'st'", "user, item, price, ts, clicked"),
    training("deltas without a full version", "full_rows = 30\n", "", "publish.delta_rows", "full_rows"),
    Command("set: key misspelled", "train --config train.toml --set train.sed=1", ("train.sed", "did you mean 'seed'")),
    training("spreadsheet", '"clicks.parquet"', '"wrong.xlsx"', ".xlsx", "parquet", "csv", wrong__xlsx=b"PK\x03\x04"),
)  # fmt: skip
TABLES = (
    table("semicolons", CSV.replace(",", ";"), "wrong.csv", "';'", "','"),
    table("a word for a time", CSV.replace(",1007,", ",yesterday,"), "'ts'", "row 7", "'yesterday'"),
    table("a word for an id", CSV.replace("\n3,", "\nabc,", 1), "'user'", "row 3", "'abc'"),
    table("a cell too many", CSV.replace("3.5,", "3.5,9,", 1), "wrong.csv", "row 3", "5 columns", "got 6"),
    table("an empty file", "", "wrong.csv", "empty"),
    table("no header", CSV.partition("\n")[2], "wrong.csv", "header", "'0', '0', '0.5'"),
    training("a Parquet file cut short", '"clicks.parquet"', '"wrong.parquet"', "wrong.parquet", "Parquet", "truncated",
             wrong__parquet=b"PAR1\x15\x04"),
    training("a CSV file named .parquet", '"clicks.parquet"', '"wrong.parquet"', "wrong.parquet", "CSV",
             wrong__parquet=CSV),
    training("a float column as an id", "[features.price]\nkind = \"float\"", "[features.price]\nkind = \"id\"",
             "features.price", "kind = 'float'"),
)  # fmt: skip
STREAMS = (
    training("Kafka without a topic", '"clicks.parquet"', '"kafka://localhost:9092"', "kafka://", "/TOPIC"),
    training("a scheme misspelled", '"clicks.parquet"', '"reids://localhost/0/s"', "'reids'", "did you mean 'redis'"),
    training("a bucket without a name", '"clicks.parquet"', '"s3://"', "data.path", "s3://BUCKET"),
    training("gcs for gs", '"clicks.parquet"', '"gcs://bucket/x.parquet"', "'gcs'", "did you mean 'gs'"),
    Command("a second trainer", "train --config train.toml", ("another trainer", "'tiny'"), trainer=True),
    Command("one file followed", "train --config train.toml --follow", ("data.path", "folder", "clicks.parquet")),
)  # fmt: skip
IMPORTS = (
    Command("pickle", "import m.pkl --name m --repository out", ("m.pkl", "ONNX"), {"m.pkl": b"\x80\x04."}),
    Command("PyTorch's file", "import m.pt --name m --repository out", ("m.pt", "ONNX"), {"m.pt": b"PK\x03\x04"}),
    Command("no such model file", "import torch.onnx --name m --repository out", ("torch.onnx", "No such file")),
    Command("an operator of one's own", "import own.onnx --name m --repository out",
            ("operator TreeEnsembleClassifier", "'my.company'", "expected one of ai.onnx")),
    Command("an ONNX file without its data", "import apart.onnx --name m --repository out",
            ("initialiser 'w'", "data file is missing")),
    Command("Keras' old file", "import m.h5 --name m --repository out", (".h5", ".keras"), {"m.h5": b"\x89HDF"}),
    Command("a folder that is no SavedModel", "import out --name m --repository out", ("out", "saved_model.pb"),
            {"out/x": ""}),
    Command("samples that are no JSON", "import model.onnx --name m --repository out --samples s.json",
            ("s.json", "JSON", "line 1"), {"model.onnx": b"x", "s.json": "{'inputs': {}}"}),
    Command("a name with a space", "import model.onnx --name 'my model' --repository out", ("'my model'", "name"),
            {"model.onnx": b"x"}),
)  # fmt: skip
SERVING = (
    Command("serve: key misspelled", "serve --config serve.toml", ("'htpp_port'", "did you mean 'http_port'"),
            {"serve.toml": 'repository = "repository"\nhtpp_port = 8501\n'}),
    Command("serve: text for a port", "serve --config serve.toml", ("http_port", "integer", "string"),
            {"serve.toml": 'repository = "repository"\nhttp_port = "8501"\n'}),
    Command("serve: a word for a port", "serve --repository repository --http-port abc",
            ("--http-port", "'abc'", "integer")),
    Command("serve: a word in the environment", "serve --repository repository",
            ("FRESHET_HTTP_PORT", "'abc'", "integer"), env={"FRESHET_HTTP_PORT": "abc"}),
    Command("serve: repository misspelled", "serve --repository repositry",
            ("repositry", "did you mean 'repository'")),
    Command("serve: model misspelled", "serve --repository repository --models smal",
            ("'smal'", "did you mean 'small'")),
    Command("serve: option misspelled", "serve --repositry repository", ("--repositry", "did you mean '--repository'")),
    Command("serve: a level that is none", "serve --repository repository --log-level inf",
            ("log_level", "'inf'", "did you mean 'info'")),
)  # fmt: skip
COMMANDS = (
    Command("command misspelled", "trian --config train.toml", ("'trian'", "did you mean 'train'")),
    Command("subcommand misspelled", "delta lst small --repository repository", ("'lst'", "did you mean 'list'")),
    Command("an option of another command", "evaluate --config train.toml --set train.seed=1", ("--set", "evaluate")),
    Command("a word for a version", "delta list small --repository repository --version new",
            ("--version", "'new'", "integer")),
    Command("inspect: model misspelled", "inspect smal --repository repository", ("'smal'", "did you mean 'small'")),
    Command("inspect: no such version", "inspect small --repository repository --version 9",
            ("version 9", "'small'", "1")),
    Command("explain: nobody listens", "explain small --request request.json --admin http://127.0.0.1:9",
            ("http://127.0.0.1:9", "freshet serve"), {"request.json": "{}"}),
    Command("explain: broken JSON", "explain small --request request.json", ("request.json", "JSON", "line 1"),
            {"request.json": "{'inputs': {}}"}),
    Command("explain: request misspelled", "explain small --request requst.json",
            ("requst.json", "did you mean 'request.json'"), {"request.json": "{}"}),
    Command("an address without its port", "fleet http://127.0.0.1", ("http://127.0.0.1", "8502")),
    Command("a table for a delta", "delta apply small clicks.parquet --admin {admin}",
            ("clicks.parquet", "delta", "Parquet")),
    Command("a step for a generation", "evaluate small --repository repository --data clicks.parquet --label clicked "
            "--generation 3", ("generation", "'3'", "version.step")),
)  # fmt: skip
GOOD = {"user": [1], "tags": [["a"]], "floats": [[1.0, 2.0, 3.0, 4.0]]}
ASK = "/v1/models/small:predict"
REQUESTS = (
    Request("null for an id", "data", "POST", ASK, ("user", "null"), {"inputs": {**GOOD, "user": [None]}}),
    Request("broken JSON", "data", "POST", ASK, ("offset: 20", "got '}"), '{"inputs": {"user": }}'),
    Request("a version that is not there", "data", "POST", "/v1/models/small/versions/9:predict",
            ("9", "small has version 1"),
            {"inputs": GOOD}),
    Request("a label that is not there", "data", "POST", "/v1/models/small/labels/prod:predict", ("prod", "small has"),
            {"inputs": GOOD}),
    Request("predictions asked of the admin port", "admin", "POST", ASK, ("predictions", "{http}"), {"inputs": GOOD}),
    Request("HTTP at the port for gRPC", "grpc", "GET", "/v2/health/ready", ("{http}",)),
    Request("a key of the policy misspelled", "admin", "PUT", "/admin/models/small/policy",
            ("splitt", "did you mean 'split'"), {"splitt": {"1": 1}}),
    Request("a rollback to nowhere", "admin", "POST", "/admin/models/small/rollback",
            ("nothing was served before 1.0", "name a generation"), {"reason": "bad"}),
    Request("text for a version", "admin", "PUT", "/admin/models/small/labels/stable",
            ("version", "expected an integer", "'1'"), {"version": "1"}),
    Request("a model misspelled", "admin", "POST", "/admin/models/smal/rollback", ("'smal'", "did you mean 'small'"),
            {"generation": "1.0"}),
)  # fmt: skip
MISTAKES: tuple[Command | Request, ...] = (
    *TRAINING_FILES, *TABLES, *STREAMS, *IMPORTS, *SERVING, *COMMANDS, *REQUESTS,
)  # fmt: skip


def body_of(request: Request) -> bytes | None:
    if request.body is None:
        return None
    return (request.body if isinstance(request.body, str) else json.dumps(request.body)).encode()
