"""The extra `gpu` in a fresh environment: which commands are run, and what must be found there."""

import pytest

from tests.gpu.fresh_venv import PROVIDERS, VENV, commands, look, said

FOUND = {"providers": PROVIDERS, "jax": True, "models": ["bench"], "lines": ["bench version 1: xla-cuda refused: why"]}


def test_commands_are_those_of_the_guide_for_this_checkout():
    first, second = commands()
    assert first.startswith("pip install '/")
    assert first.endswith("[gpu]'")
    assert second == "pip install --no-deps --force-reinstall onnxruntime-gpu"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, 0),
        ({"providers": ["AzureExecutionProvider", "CPUExecutionProvider"]}, 1),
        ({"jax": False}, 1),
        ({"lines": []}, 1),
        ({"lines": FOUND["lines"] * 2}, 1),
    ],
)
def test_missing_provider_plug_in_or_line_is_told(changes, wrong):
    assert len(said(FOUND | changes)) == wrong


@pytest.mark.long
@pytest.mark.skipif(not (VENV / "bin" / "python").exists(), reason="make -C loadtest gpu-extra has not been run")
def test_fresh_environment_lists_the_gpus_providers():
    found = look(VENV / "bin" / "python")
    assert found["providers"] == PROVIDERS
    assert found["jax"]
