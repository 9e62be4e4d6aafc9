"""The GPU check on a processor: every step that has a counterpart there, and the reports of those that fail."""

import gc
import shutil
import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="a bundle is made with the train extra")
pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.compiler.backends import xla as compiling
from freshet_serving.processor.backends import xla
from tests.gpu import __main__ as command
from tests.gpu import bundled
from tests.gpu.bundled import Check, Skip
from tests.gpu.report import FAILED, PASSED, SKIPPED, Outcome, file_name, markdown
from tests.gpu.steps import STEPS
from tests.support.played_gpu import put_cuda, put_tensorrt, put_xla

# What the GPU side does is tested by its own modules with a played device; this is the check of the check.
pytestmark = [pytest.mark.tensorflow, pytest.mark.long, pytest.mark.campaign]

TENSORRT = {"tensorrt", "tensorrt-deltas", "tensorrt-weights"}
NOT_ON_A_PROCESSOR = {"host-memory", "xla-ahead", "xla-unrecorded", "xla-recorded", *TENSORRT}
# Servers are processes of their own, where no GPU is played.
NOT_ON_A_PLAYED_GPU = {"about", "onnxruntime", "http"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    assert command.main(["bundle", "--out", str(folder), "--rows", "50", "--buckets", "1,64"]) == 0
    return folder


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A bundle with code for two GPUs, whose compilers are played."""
    folder = tmp_path_factory.mktemp("gpu") / "ahead"
    with pytest.MonkeyPatch.context() as patch:
        compiler, module = xla._Cpu(1), put_tensorrt(patch)

        def compile_ahead(origin, target, bucket):
            code = compiler.client.serialize_executable(compiler.compile(origin))
            return SimpleNamespace(serialize=lambda: code)

        patch.setattr(compiling, "compile_ahead", compile_ahead)
        targets = ["--targets", "cuda-sm_80,cuda-sm_90"]
        assert command.main(["bundle", "--out", str(folder), "--rows", "50", "--buckets", "1,64", *targets]) == 0
        assert module.built == 2 + 6 + 12, "buckets of bench and of both models in parts"
    return folder


@pytest.fixture
def gpu(request, monkeypatch):
    """A played GPU of this kind, with XLA and TensorRT."""
    runtime = put_cuda(monkeypatch, request.param)
    runtime.tensorrt, runtime.xla = put_tensorrt(monkeypatch, runtime), put_xla(monkeypatch, request.param)
    # Products of the processor: no TF32.
    monkeypatch.setitem(bundled.CLOSE, "cuda", 1e-5)
    return runtime


@pytest.mark.parametrize(
    ("name", "gpu"),
    [(name, "90") for name in STEPS if name not in NOT_ON_A_PLAYED_GPU] + [("tensorrt", "80"), ("xla-ahead", "80")],
    indirect=["gpu"],
)
def test_step_runs_on_a_played_gpu_and_reports_figures(name, gpu, ahead, tmp_path):
    """The whole check, with a GPU whose memory is the host's."""
    found = dict(STEPS[name](Check(ahead, "cuda", tmp_path, seconds=0.2)))

    assert found
    if name == "tensorrt":
        made = 2 if gpu.capability == "80" else 0
        assert f"{made} of 2 engines made without a GPU; all loaded" in found
    if name == "xla-ahead":
        assert gpu.xla.compiled == 2, "those that are compared with it"
    gc.collect()
    assert (gpu.device, gpu.streams) == ({}, set())


def test_steps_after_the_last_minute_are_skipped_and_say_so(bundle, tmp_path, capsys):
    options = ["--bundle", str(bundle), "--out", str(tmp_path), "--device", "cpu", "--only", "boundary"]
    assert command.main(["check", "--minutes", "0", *options]) == 0
    assert "boundary: skipped the check's 0 minutes were over" in capsys.readouterr().out
    assert "| skipped: the check's 0 minutes were over |" in (tmp_path / "REPORT-CPU.md").read_text()


@pytest.mark.parametrize("name", [name for name in STEPS if name not in NOT_ON_A_PROCESSOR])
def test_step_runs_on_a_cpu_and_reports_figures(name, bundle, tmp_path):
    found = list(STEPS[name](Check(bundle, "cpu", tmp_path, seconds=0.2)))

    assert found
    assert all(isinstance(part, str) for figure in found for part in figure)


@pytest.mark.parametrize("name", sorted(NOT_ON_A_PROCESSOR))
def test_step_without_its_hardware_says_what_is_missing(name, bundle, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(Skip, match=r"NVIDIA GPUs alone|cuda-python is not installed|no machine code for"):
        list(STEPS[name](Check(bundle, "cpu", tmp_path)))


def test_check_runs_its_steps_in_processes_and_writes_a_report(bundle, tmp_path, capsys):
    options = ["--bundle", str(bundle), "--out", str(tmp_path), "--seconds", "0.1"]
    assert command.main(["check", "--device", "cpu", "--only", "about,boundary,tensorrt", *options]) == 0

    said = capsys.readouterr().out
    assert "boundary: passed" in said
    assert "tensorrt: skipped TensorRT runs on NVIDIA GPUs alone" in said
    (report,) = tmp_path.iterdir()
    text = report.read_text()
    assert report.name == "REPORT-CPU.md"
    assert "| jaxlib | " in text
    assert "| tensors sent | 39 |" in text


def test_failed_step_is_reported_and_the_others_run(bundle, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    (broken / "reference.safetensors").write_bytes(b"not one")
    options = ["--bundle", str(broken), "--out", str(tmp_path / "out"), "--device", "cpu"]

    assert command.main(["check", "--only", "xla-weights,boundary", *options]) == 1

    assert "boundary: passed" in capsys.readouterr().out
    text = (tmp_path / "out" / "REPORT-CPU.md").read_text()
    assert "| failed: freshet_serving.processor.errors.Corrupt: reference" in text


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.abort()", "ended with status -6"),
        ("import sys; print('x', file=sys.stderr); sys.exit(3)", "x"),
        ("import sys; print('noise'); print('x', file=sys.stderr); sys.exit(3)", "x"),
        ("print('no json')", "what it printed is no JSON"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
    ],
)
def test_crashing_hanging_or_garbled_process_fails_its_step(code, why, bundle, monkeypatch):
    """The step's process, played by another."""
    real = command.subprocess.run

    def run(arguments, **options):
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(command.subprocess, "run", run)
    outcome = command.run_step("xla", "", Namespace(bundle=bundle, device="cpu", seconds=1.0), timeout_s=2)
    assert (outcome.result, outcome.why) == (FAILED, why)


def test_step_that_the_end_of_the_check_cuts_off_is_skipped_unless_it_had_enough_time(monkeypatch, tmp_path):
    def hang(arguments, *, timeout, **options):
        raise command.subprocess.TimeoutExpired(arguments, timeout)

    monkeypatch.setattr(command.subprocess, "run", hang)
    (tmp_path / "bundle.json").write_text("{}")
    options = ["--bundle", str(tmp_path), "--out", str(tmp_path), "--device", "cpu", "--only", "boundary"]
    assert command.main(["check", "--minutes", "1", *options]) == 0
    assert "| skipped: the check's 1 minutes were over after 60 s of it |" in (tmp_path / "REPORT-CPU.md").read_text()
    assert command.main(["check", "--minutes", "3", *options]) == 1


def test_failed_step_keeps_earlier_figures_and_its_output(bundle, tmp_path, monkeypatch):
    run = command.subprocess.run

    def fail(arguments, **options):
        """The process of the step, with a step in it that fails."""
        code = (
            "import sys; from tests.gpu import __main__ as command; from tests.gpu.steps import STEPS\n"
            "def step(check):\n    yield 'rows', '5'\n    raise ValueError('off by one')\n"
            "STEPS['boundary'] = step; sys.exit(command.main(sys.argv[1:]))"
        )
        return run([sys.executable, "-c", code, *arguments[3:]], **options)

    monkeypatch.setattr(command.subprocess, "run", fail)
    options = ["--bundle", str(bundle), "--out", str(tmp_path), "--device", "cpu", "--only", "boundary"]
    assert command.main(["check", *options]) == 1
    text = (tmp_path / "REPORT-CPU.md").read_text()
    assert "| failed: ValueError: off by one |" in text
    assert "| rows | 5 |" in text
    assert "Traceback" in (tmp_path / "REPORT-CPU.log").read_text()


def test_check_without_a_gpu_says_so_and_succeeds(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert command.main(["check"]) == 0
    assert capsys.readouterr().out == ("gpu-check skipped: no NVIDIA GPU is to be had here: nvidia-smi does not run\n")


def test_check_without_a_bundle_says_how_to_make_one(tmp_path, capsys):
    assert command.main(["check", "--device", "cpu", "--bundle", str(tmp_path)]) == 2
    assert "run `make -C loadtest gpu-bundle`" in capsys.readouterr().err


def test_report_has_one_line_per_step_for_any_content():
    outcomes = [
        Outcome("a", "what", PASSED, figures=[["x|y", "1"]]),
        Outcome("b", "what", FAILED, "E: line\none | two"),
        Outcome("c", "what", SKIPPED, "none here"),
    ]
    text = markdown("NVIDIA H200", {"driver": "1"}, outcomes)
    assert "| b | failed: E: line one / two | 0 |" in text
    assert "| x/y | 1 |" in text
    sides = [["sent, load", "2"], ["sent, error", "3"], ["by place, load", "4"]]
    text = markdown("NVIDIA H200", {}, [Outcome("a", "what", PASSED, figures=sides)])
    assert "| | sent | by place |\n|---|---|---|\n| load | 2 | 4 |\n| error | 3 |  |" in text
    assert file_name("NVIDIA H200 / x") == "REPORT-NVIDIA-H200-x.md"
