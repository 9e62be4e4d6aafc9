import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.training.losses import row_loss
from freshet_serving.models.zoo import deepfm, dlrm
from freshet_serving.models.zoo.arch import Arch, build_arch, resolve_arch
from freshet_serving.models.zoo.architectures import ARCHITECTURES, NEXT_ITEM, UNTIMED, WITHOUT_HISTORIES
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.item_rows import ItemRows
from tests.models.zoo.layouts import LAYOUTS
from tests.models.zoo.sequence_models import DIM, manifest

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_first_weights_follow_from_the_seed(name):
    """Trainers of tests share their networks (tests.support.shared_steps): only here are equal ones built twice."""
    width = ItemRows.around(DIM, {}).width if name in NEXT_ITEM else DIM
    whole = manifest(name, 3, timed=name not in (*UNTIMED, *WITHOUT_HISTORIES), item_dim=width)
    features = [replace(whole.features[1], offset=0)] if name in NEXT_ITEM else whole.features
    layout = DenseInput.from_features(features, [] if name in WITHOUT_HISTORIES else whole.sequences)
    labels = ("click", "buy") if name in ("mmoe", "esmm") else ("label",)
    options = {"layers": 1} if "layers" in inspect.signature(resolve_arch(name)).parameters else {}
    first, same, other = (
        {
            v.path: v.numpy()
            for v in build_arch(name, layout, options, labels, seed).scores.variables
            if v.dtype == "float32"
        }
        for seed in (1, 1, 2)
    )

    assert any(map(np.ptp, first.values()))
    for path, weights in first.items():
        assert np.array_equal(weights, same[path]), path
        constant = len(np.unique(weights)) <= 2
        assert np.array_equal(weights, other[path]) == constant, path


def test_user_function_is_found(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text("def tower(layout, hidden, seed=0): return 'built'\nwidth = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert resolve_arch("their_nets:tower")(None, ()) == "built"
        with pytest.raises(BadInput, match="'their_nets:width' is not a function of that module"):
            resolve_arch("their_nets:width")
        with pytest.raises(BadInput, match="'their_nets:missing' is not a function of that module"):
            resolve_arch("their_nets:missing")
    finally:
        sys.modules.pop("their_nets", None)


def test_function_with_a_wrong_signature_is_refused(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text("def unseeded(layout): ...\ndef bare(*, seed=0): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        for name, wrong in (("unseeded", "unexpected keyword argument 'seed'"), ("bare", "too many positional")):
            with pytest.raises(BadInput, match=f"arch: 'their_nets:{name}' must take a layout, seed .*: .*{wrong}"):
                build_arch(f"their_nets:{name}", LAYOUTS["one float"], {})
    finally:
        sys.modules.pop("their_nets", None)


@pytest.mark.parametrize("name", ["", "deepfn", "a b:c", "os.system", ":f", "m:", "m:f()", "../m:f", "m:f:g"])
def test_invalid_arch_reference_is_refused(name):
    with pytest.raises(BadInput, match=r"arch: expected deepfm, dlrm, .*, two_tower or 'package\.module:function'"):
        resolve_arch(name)


def test_missing_module_is_refused():
    with pytest.raises(BadInput, match="module 'no_such_module' of 'no_such_module:f' cannot be imported"):
        resolve_arch("no_such_module:f")


def test_plain_keras_model_of_logits_becomes_an_arch():
    x = keras.Input((3,))
    arch = Arch.of(keras.Model(x, keras.layers.Dense(1, name="d")(x)))
    rows = np.ones((2, 3), np.float32)

    logits = arch.logits(rows).numpy()

    np.testing.assert_allclose(arch.scores(rows)["score"].numpy(), 1 / (1 + np.exp(-logits)), atol=1e-6)


def test_model_without_one_logit_is_refused():
    x = keras.Input((3,))
    with pytest.raises(BadInput, match=r"to return a keras\.Model, got str"):
        Arch.of("model")
    with pytest.raises(BadInput, match=r"to one logit \[n, 1\]"):
        Arch.of(keras.Model(x, keras.layers.Dense(2)(x)))
    with pytest.raises(BadInput, match=r"to one logit \[n, 1\]"):
        Arch.of(keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)]))


@pytest.mark.parametrize("top", ["models", "compiler"])
def test_user_module_may_share_the_name_of_a_top_folder(tmp_path, monkeypatch, top):
    (tmp_path / top).mkdir()
    (tmp_path / top / "__init__.py").touch()
    (tmp_path / top / "towers.py").write_text("def build(layout, hidden, seed=0): return 'built'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_arch(f"{top}.towers:build")(None, ()) == "built"


@pytest.mark.parametrize("build", [deepfm.build, dlrm.build])
def test_zoo_network_starts_at_the_given_log_odds(build):
    arch = Arch.of(build(LAYOUTS["embeddings then floats"], hidden=(4,)))
    x = np.random.default_rng(1).standard_normal((5, 14)).astype(np.float32)
    before = arch.logits(x).numpy()
    arch.set_initial_bias([-5.5])
    np.testing.assert_allclose(arch.logits(x).numpy(), before - 5.5, atol=1e-5)


def test_network_without_an_output_bias_ignores_the_initial_log_odds():
    x = keras.Input((3,))
    gate = keras.layers.Dense(1, "sigmoid", name="gate")(x)
    arch = Arch.of(keras.Model(x, gate * keras.layers.Dense(1, use_bias=False, name="out")(x)))
    before = [v.numpy() for v in arch.logits.trainable_variables]
    arch.set_initial_bias([-3.0])
    for began, variable in zip(before, arch.logits.trainable_variables):
        np.testing.assert_array_equal(variable.numpy(), began)


def test_documented_example_network_learns(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "custom-models.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    (code,), (loss,) = ([b for b in blocks if name in b] for name in ("def two_parts", "def focal"))
    (tmp_path / "my_networks.py").write_text(code)
    (tmp_path / "my_losses.py").write_text(loss)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        build = resolve_arch("my_networks:two_parts")
        for layout in LAYOUTS.values():
            arch = Arch.of(build(layout, hidden=(4,), seed=3))
            assert arch.logits.output_shape == (None, 1)
            again = Arch.of(build(layout, hidden=(4,), seed=3))
            for a, b in zip(arch.logits.trainable_variables, again.logits.trainable_variables, strict=True):
                assert a.path == b.path
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        arch.set_initial_bias([-2.0])
        assert float(arch.logits(np.zeros((1, layout.width), np.float32))[0, 0]) == pytest.approx(-2.0, abs=1e-5)
        focal = row_loss(NetworkConfig(loss="my_losses:focal"))
        np.testing.assert_allclose(focal(tf.constant([1.0]), tf.constant([0.0])), [np.log(2) / 4], rtol=1e-6)
    finally:
        sys.modules.pop("my_networks", None)
        sys.modules.pop("my_losses", None)
