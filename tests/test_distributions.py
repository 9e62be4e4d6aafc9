"""The two distributions: their names, what they hold, and what people are told to install.

`make release` (tests/release) builds them and runs those lines in fresh environments.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extras import DISTRIBUTION, EXTRA_OF, how_to_install
from tests.release.contents import client_files
from tests.release.newcomer import ROOT, install_lines, requirement

SERVING = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "serving" / "client" / "pyproject.toml").read_text())
TRAINING = {"jax", "jaxlib", "keras", "pyarrow", "tensorflow", "tf2onnx"}
"""What the train extra brings and the onnx extra does not."""


def imports(file):
    """Every module or name that a file imports when it runs, by its full name."""
    tree = ast.parse(file.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_file(name):
    path = ROOT.joinpath(*name.split("."))
    return next((f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()), None)


def asked_for(file, name):
    """Whether the client imports it: of what an extension imports only when it is asked, it asks for sections alone."""
    return file.parent.parent.name != "extensions" or file.name != "__init__.py" or ".section" in name


def test_client_contains_every_module_it_imports():
    files = {ROOT / name for name in client_files(ROOT)}
    missing = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        if file.suffix == ".py"
        for name in imports(file)
        if name.partition(".")[0] == "freshet_serving"
        and asked_for(file, name)
        and (found := module_file(name)) is not None
        and found not in files
    }
    assert missing == set()


def test_client_needs_only_libraries_it_declares():
    brings = {requirement(line) for line in CLIENT["project"]["dependencies"]}
    names = {"grpcio": "grpc", "protobuf": "google"}
    # For those who have them: a callback of Keras, a hook of PyTorch, signatures (cryptography), buckets (obstore).
    extras = {"cryptography", "keras", "obstore", "tensorflow", "torch"}
    allowed = {names.get(name, name) for name in brings} | extras | {"freshet_serving"}
    for file in (ROOT / name for name in client_files(ROOT)):
        if file.suffix == ".py":
            stray = {name.partition(".")[0] for name in imports(file)} - allowed - set(sys.stdlib_module_names)
            assert stray == set(), file


def test_distributions_exclude_generators_and_tests():
    found = SERVING["tool"]["setuptools"]["packages"]["find"]["include"]
    assert found == ["freshet_serving*"]
    assert [name for name in client_files(ROOT) if name.startswith(("generators/", "tests/"))] == []


def test_distribution_names_are_unique_and_consistent():
    assert SERVING["project"]["name"] == DISTRIBUTION == "freshet-serving"
    assert CLIENT["project"]["name"] == "freshet-client"
    assert "freshet" not in SERVING["tool"]["setuptools"]["packages"]["find"]["include"]
    core = set(SERVING["project"]["dependencies"]) | set(SERVING["project"]["optional-dependencies"]["client"])
    assert set(CLIENT["project"]["dependencies"]) <= core


def test_install_hints_name_existing_distributions_and_extras():
    lines = [line for line in install_lines() if line != "pip install ./serving/client"]
    assert len(lines) >= 8
    for line in lines:
        name, extras = re.search(r"(freshet[\w-]*)(?:\[([\w,]+)\])?", line).groups()
        assert name in (DISTRIBUTION, "freshet-client"), line
        assert set((extras or "").split(",")) - {""} <= set(SERVING["project"]["optional-dependencies"]), line


def test_every_suggested_library_is_provided_by_its_extra():
    extras = SERVING["project"]["optional-dependencies"]
    brought = {"tensorflow": "tensorflow-cpu", "confluent_kafka": "confluent-kafka"}
    brought["tensorrt"] = "tensorrt-rtx-cu13-bindings"
    for library, extra in EXTRA_OF.items():
        assert brought.get(library, library) in {requirement(line) for line in extras[extra]}, library


def without(folder, libraries, code):
    """Run Python in a folder, in which these libraries are not installed."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {libraries!r} or name in {libraries!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


COMMANDS = {
    "train": ("train", "--config", "train.toml"),
    "bench": ("bench", "model", "--rows", "1", "--repository", "r"),
    "import": ("import", "pooled.onnx", "--name", "m", "--repository", "models"),
    "translate": ("import", "pooled.onnx", "--name", "m", "--repository", "models", "--translate"),
}
TOLD = f"""
import contextlib, io, json, pathlib, sys
from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.serving.commands.cli import main
for name in ("bag", "gru", "trees"):
    import_model(pathlib.Path(f"{{name}}.onnx"), "models", name)
told = {{}}
for name, line in {COMMANDS!r}.items():
    sys.argv, errors, code = ["freshet", *line], io.StringIO(), 0
    try:
        with contextlib.redirect_stderr(errors):
            main()
    except SystemExit as end:
        code = end.code
    told[name] = [code, errors.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder, and what COMMANDS say in it, where nothing of the train extra is installed but onnx: exit status and
    standard error of each. Its models are a bag as PyTorch's exporter spells it, a GRU with its table, and trees."""
    pytest.importorskip("onnx", reason="needs the onnx extra")
    from tests.compiler.imports.onnx_graph.spelled import TABLE, torchscript_bag, unoptimised_bag, written
    from tests.compiler.imports.onnx_native.native_models import GRU, GRU_WEIGHTS, regressor, spelled

    folder = tmp_path_factory.mktemp("bare")
    written(folder / "bag.onnx", unoptimised_bag(1), 20, emb__weight=TABLE)
    written(folder / "pooled.onnx", torchscript_bag("ReduceMax"), emb__weight=TABLE)
    spelled(folder / "gru.onnx", GRU, **GRU_WEIGHTS)
    regressor(folder / "trees.onnx")
    (folder / "train.toml").write_text(
        '[model]\nname = "m"\n[data]\npath = "a.parquet"\nlabel = "y"\n[features.u]\nkind = "id"\n'
        '[publish]\nrepository = "r"\n'
    )
    (folder / "a.parquet").touch()
    return folder, json.loads(without(folder, TRAINING, TOLD).splitlines()[-1])


@pytest.mark.parametrize(
    ("command", "library"), [("train", "pyarrow"), ("bench", "tensorflow"), ("translate", "tensorflow")]
)
def test_command_without_its_extra_says_what_to_install(bare, command, library):
    status, error = bare[1][command]
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("freshet: ")
    assert error.endswith(f" needs {library}, which is not installed: {how_to_install('train')}\n")


def test_file_that_needs_tensorflow_says_so_in_one_line(bare):
    status, error = bare[1]["import"]
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("freshet: pooled.onnx: graph: EmbeddingBag 'y' of ids and offsets: expected a sum ")
    assert error.endswith(f"; {how_to_install('train')} and pass --translate\n")


def test_onnx_files_are_imported_and_served_without_tensorflow(bare):
    from tests.compiler.imports.onnx_graph.spelled import bags_of, pooled
    from tests.compiler.imports.onnx_native.native_models import own_scores

    folder, _ = bare
    random, bags = np.random.default_rng(0), bags_of([2, 0, 3])
    gru = {"history": random.integers(0, 30, (3, 5)), "target": random.integers(0, 30, 3)}
    trees = {"input": random.standard_normal((3, 6)).astype(np.float32)}
    with Processor.initialize(ProcessorConfig(repository=str(folder / "models"), sessions=1)) as processor:

        def served(name, inputs):
            return next(iter(processor.process(PredictRequest(name, inputs)).outputs.values())).reshape(3, -1)

        close = {"rtol": 1e-5, "atol": 1e-5}
        ids = Ragged(bags["ids"], bags["ids/row_splits"])
        np.testing.assert_allclose(served("bag", {"ids": ids}), pooled("mean", bags), **close)
        for name, inputs in (("gru", gru), ("trees", trees)):
            (expected,) = own_scores(folder / f"{name}.onnx", inputs).values()
            np.testing.assert_allclose(served(name, inputs), expected, **close)


def test_trainer_publishes_with_numpy_xxhash_and_orjson_alone(tmp_path):
    """As in a trainer's image that has freshet-client: no server, and none of the client's transports."""
    rest = {requirement(line) for line in CLIENT["project"]["dependencies"]} - {"numpy", "xxhash", "orjson"}
    server = {requirement(line) for line in SERVING["project"]["dependencies"]} - {"numpy", "xxhash", "orjson"}
    missing = {{"grpcio": "grpc", "protobuf": "google"}.get(name, name) for name in rest | server} | TRAINING
    code = (
        "import numpy as np\n"
        "from freshet_serving import Publisher\n"
        "from tests.models.publishing.torch_trainer import MODEL, write\n"
        "write('models')\n"
        "row = np.ones((1, 4), np.float32)\n"
        "print(Publisher('models', MODEL).publish({'user.weight': (np.array([3]), row)}))\n"
    )
    without(tmp_path, missing, code)
    assert list((tmp_path / "models" / "torched" / "1" / "deltas").glob("*.safetensors"))


def test_client_runs_from_a_zip_file(tmp_path):
    """As where a cluster takes Python files in one, such as Spark."""
    with zipfile.ZipFile(tmp_path / "client.zip", "w") as packed:
        for name in client_files(ROOT):
            packed.write(ROOT / name, name)
    code = (
        "from freshet_serving import Client, Publisher\n"
        "Client('grpc://localhost:1').close()\n"
        "print(Publisher.__module__)\n"
    )
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": "client.zip"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("freshet_serving.models.publishing.publisher\n", "")


def test_client_without_httpx_names_the_package_and_grpc_works(tmp_path):
    code = (
        "from freshet_serving import AsyncClient, Client\n"
        "Client('grpc://localhost:1').close()\n"
        "for kind in (Client, AsyncClient):\n"
        "    try:\n"
        "        kind('http://localhost:1')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    line = f"MissingLibrary a client over HTTP needs httpx, which is not installed: {how_to_install('client')}\n"
    assert without(tmp_path, {"httpx"}, code) == line * 2


def test_missing_client_features_point_to_the_other_distribution(tmp_path):
    code = "try:\n    from freshet_serving import Processor\nexcept ImportError as error:\n    print(error)\n"
    printed = without(tmp_path, {"freshet_serving.processor.engine"}, code)
    assert printed == "Processor is not in freshet-client: pip install freshet-serving\n"
