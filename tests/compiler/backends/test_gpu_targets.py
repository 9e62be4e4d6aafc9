"""Code for GPUs that are not here: what is known without XLA's CUDA plug-in, and what that compiles where it is."""

import importlib.util
import re

import pytest

from freshet_serving.compiler.backends import gpu_targets
from freshet_serving.compiler.backends.gpu_targets import MODELS, compile_ahead, description, prepare
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.processor.backends.artefacts import make_stablehlo

WITH_PLUGIN = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None, reason="needs jax with CUDA, and no GPU"
)


@pytest.mark.parametrize("target", MODELS)
def test_a_target_is_described_by_its_own_compute_capability(target):
    major, minor = re.search(r"major: (\d+) minor: (\d+)", description(target)).groups()
    assert target == f"cuda-sm_{major}{minor}"


def test_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match=r"^target: expected one of cuda-sm_80, .*cuda-sm_120, got 'cuda-sm_70'$"):
        prepare(["cuda-sm_90", "cuda-sm_70"])


def test_without_the_plug_in_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu_targets, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"jax with CUDA is not installed: .*pip install .*\[gpu\]'"):
        compile_ahead(make_stablehlo(4), "cuda-sm_90", 4)


@WITH_PLUGIN
@pytest.mark.parametrize("target", MODELS)
def test_every_target_is_compiled_for_without_a_gpu(target):
    prepare([target])
    assert len(compile_ahead(make_stablehlo(4), target, 4).serialize()) > 1000


@WITH_PLUGIN
def test_what_is_no_stablehlo_is_one_clear_line():
    prepare(["cuda-sm_90"])
    with pytest.raises(Corrupt, match="executable b4: refused by XLA's compiler for cuda-sm_90"):
        compile_ahead(b"none", "cuda-sm_90", 4)
