"""`freshet delta make`: a retrained model's export becomes the delta between it and what is served."""

import shutil

import keras
import numpy as np
import pytest
from keras import layers

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.retrained_export import read_export
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.compiler.imports.foreign import without_deprecations
from tests.serving.commands.running import run

SMALL = ImportOptions(buckets=(1, 16))
WORDS = [f"w{i}" for i in range(9)]


def make_model(seed=0, dim=3, activation="relu", words=WORDS, unknown_moves=False):
    """Strings, hashed strings and row numbers; every seed has other weights, but for the row of unknown words."""
    word = keras.Input((1,), dtype="string", name="word")
    kind = keras.Input((1,), dtype="string", name="kind")
    item = keras.Input((1,), dtype="int64", name="item")
    parts = [
        layers.Embedding(len(words) + 1, dim, name="words")(layers.StringLookup(vocabulary=words, name="known")(word)),
        layers.Embedding(8, dim, name="kinds")(layers.Hashing(8, name="hashed")(kind)),
        layers.Embedding(12, dim, name="items")(item),
    ]
    x = layers.Concatenate()([layers.Flatten()(part) for part in parts])
    score = layers.Dense(1, name="score")(layers.Dense(4, activation=activation, name="hidden")(x))
    model = keras.Model([word, kind, item], score)
    draw = np.random.default_rng(seed)
    for variable in model.weights:
        value = draw.standard_normal(variable.shape).astype(np.float32)
        if variable.path == "words/embeddings" and not unknown_moves:
            value[0] = 0.5
        variable.assign(value)
    return model


def saved(folder, name, **options):
    with without_deprecations():
        make_model(**options).save(folder / f"{name}.keras")
    return folder / f"{name}.keras"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reexport")
    import_model(saved(folder, "first"), folder / "repository", "ctr", options=SMALL)
    return folder / "repository"


@pytest.fixture
def repository(imported, tmp_path):
    shutil.copytree(imported, tmp_path / "repository")
    return tmp_path / "repository"


def parts(repository):
    publisher = Publisher(repository, "ctr")
    contents = publisher.served()
    tables = [a for t in publisher.manifest.tables for a in contents.table(t.name)]
    return [a.tobytes() for a in (*tables, *contents.dense.values())]


def make(repository, source):
    return run("delta", "make", "ctr", "--from-export", str(source), "--repository", str(repository))


def test_published_export_equals_its_import_bitwise(repository, tmp_path):
    source = saved(tmp_path, "second", seed=1)
    with without_deprecations():
        exported = tmp_path / "exported"
        make_model(seed=1).export(str(exported), format="tf_saved_model", verbose=False)

    said = make(repository, source)

    assert said.startswith("ctr 1.1: 29 rows, 0 removed, 4 dense weights, ")
    import_model(source, tmp_path / "twin", "ctr", options=SMALL)
    assert parts(repository) == parts(tmp_path / "twin")
    assert make(repository, source) == "ctr 1.1: no differences\n"
    assert make(repository, exported) == "ctr 1.1: no differences\n"


@pytest.mark.long
def test_export_is_published_on_the_served_state_after_a_rollback(repository, tmp_path):
    make(repository, saved(tmp_path, "second", seed=1))
    ChangeLog.of(Repository(repository).version("ctr")).rollback(0)
    assert make(repository, saved(tmp_path, "third", seed=2)).startswith("ctr 1.2: ")


def test_changed_out_of_vocabulary_row_is_published(repository, tmp_path):
    publisher = Publisher(repository, "ctr")
    unknown = publisher.ids("words.embeddings", [None])
    imported = publisher.served().rows("words.embeddings", unknown)[1]

    said = make(repository, saved(tmp_path, "second", seed=1, unknown_moves=True))

    assert said.startswith("ctr 1.1: 30 rows, ")
    assert (publisher.served().rows("words.embeddings", unknown)[1] != imported).all()


@pytest.mark.long
def test_grown_vocabulary_adds_its_rows(repository, tmp_path):
    publisher = Publisher(repository, "ctr")
    assert make(repository, saved(tmp_path, "second", words=[*WORDS, "new"])).startswith("ctr 1.1: ")
    new = publisher.ids("words.embeddings", ["new"])
    assert publisher.served().rows("words.embeddings", new)[0].all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 5}, r"table '\w+.embeddings': expected dim 3 as served, got 5; import it as a new version"),
        ({"activation": "tanh", "seed": 1}, "the network itself differs: output '.*' differs by"),
    ],
    ids=["another width", "another network"],
)
def test_mismatched_export_is_refused_with_the_difference(repository, tmp_path, options, message):
    version = Repository(repository).version("ctr")
    with pytest.raises(BadInput, match=f"export: {message}"):
        read_export(saved(tmp_path, "other", **options), version)
    assert Publisher(repository, "ctr").generation.step == 0


def test_export_with_different_tables_is_refused_by_name(repository, tmp_path):
    item = keras.Input((1,), dtype="int64", name="item")
    x = layers.Flatten()(layers.Embedding(12, 3, name="items")(item))
    with without_deprecations():
        keras.Model(item, layers.Dense(1, name="score")(x)).save(tmp_path / "small.keras")
    message = "expected the tables of the served version, found on one side only: kinds.embeddings, words.embeddings"
    with pytest.raises(BadInput, match=message):
        read_export(tmp_path / "small.keras", Repository(repository).version("ctr"))
