"""Networks compiled for GPUs without one: what is checked of them, with a compiler that is played, and for real."""

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")
pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.processor.errors import Corrupt
from tests.gpu import compiled, engines
from tests.gpu.engines import INPUTS, INSIDE, REFITTED
from tests.support.played_gpu import put_tensorrt

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

TARGET = ("cuda-sm_90",)


def played(layout):
    """A compiler whose executables say that they take and give this."""
    module = SimpleNamespace(to_string=lambda: f"HloModule f, entry_computation_layout={{{layout}\n}}")
    made = SimpleNamespace(serialize=lambda: b"code", hlo_modules=lambda: [module])
    return lambda origin, target, bucket: made


def test_an_executable_that_takes_something_else_is_told(monkeypatch):
    monkeypatch.setattr(compiled, "compile_ahead", played("(f32[64,2]{1,0})->f32[64,1]{1,0}"))
    (line, *_) = compiled.compile_all(["zoo-deepfm"], TARGET, ())
    assert line.made["cuda-sm_90"].startswith("takes and gives something else: (f32[64,2]")


def test_what_a_compiler_refuses_is_a_line_of_the_report(monkeypatch):
    def refuse(origin, target, bucket):
        raise Corrupt("an operator | nobody has")

    monkeypatch.setattr(compiled, "compile_ahead", refuse)
    lines = list(compiled.compile_all(["zoo-deepfm"], TARGET, ()))
    assert {line.made["cuda-sm_90"] for line in lines} == {"an operator | nobody has"}
    assert all(line.error < 1e-5 and len(line.source) == 12 for line in lines)
    assert "| an operator / nobody has |" in compiled.markdown(lines, ["jaxlib 0"])


@pytest.mark.skipif(importlib.util.find_spec("jax_plugins") is None, reason="needs jax with CUDA, and no GPU")
@pytest.mark.parametrize("name", ["user-once", "sasrec", "import-onnx"])
def test_every_part_of_a_network_is_compiled(name):
    with_engines = ("cuda-sm_89",) if engines.available() else ()
    lines = list(compiled.compile_all([name], TARGET, with_engines))
    assert lines
    assert all(isinstance(made, tuple) for line in lines for made in line.made.values())


@pytest.mark.campaign
@pytest.mark.parametrize("name", compiled.SEQUENCES)
def test_history_is_an_input_of_every_part_that_reads_it(name, monkeypatch):
    """With the compilers played, for they are not everywhere: what they are given is the same."""
    monkeypatch.setattr(compiled, "compile_ahead", lambda origin, target, bucket: None)
    monkeypatch.setattr(compiled, "_xla", lambda *given: (1, 0.0))
    lines = {line.part: line for line in compiled.compile_all([name], TARGET, ())}
    assert lines.keys() == {"whole", "user", "score"}
    assert lines["whole"].inputs.startswith("x [64, 13], history [64, 224]; ")
    assert "history [16, 224]" in lines["user"].inputs
    assert "history" not in lines["score"].inputs
    assert all(line.error < 1e-5 for line in lines.values())


def test_ways_to_new_weights_are_all_in_the_report(monkeypatch):
    module = put_tensorrt(monkeypatch)
    monkeypatch.setattr(compiled, "WAYS_OF", ("zoo-dcn",))
    tried = list(compiled.ways())
    assert [way for _, way, _, _ in tried] == [way for way in (INPUTS, INSIDE, REFITTED) for _ in range(2)]
    assert module.built == 6
    text = compiled.markdown([], ["TensorRT 0"], tried)
    assert "| zoo-dcn | weights inside, to be refitted | 4096 | " in text
