"""The GPU check on a processor: every step that has a counterpart there, and the reports of those that fail."""

import gc
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow", reason="a bundle is made with the train extra")
pytest.importorskip("jaxlib", reason="the xla extra is not installed")

from freshet_serving.compiler.backends import xla as compiling
from freshet_serving.processor.backends import xla
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.extensions.device_rows import placed_rows
from tests.gpu import __main__ as command
from tests.gpu import bundled, processes
from tests.gpu.bundled import Check, Skip, device_of
from tests.gpu.report import FAILED, PASSED, SKIPPED, Outcome, file_name, markdown
from tests.gpu.steps import STEPS
from tests.support.played_gpu import put_cuda, put_tensorrt, put_xla
from tests.support.waiting import until

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
    # Products of the processor: no TF32, and nothing to measure.
    monkeypatch.setitem(bundled.CLOSE, "cuda", 1e-5)
    monkeypatch.setitem(bundled.SIZES, "cuda", bundled.SIZES["cpu"])
    return runtime


@pytest.mark.parametrize(
    ("name", "gpu"),
    [(name, "90") for name in STEPS if name not in NOT_ON_A_PLAYED_GPU] + [("tensorrt", "80"), ("xla-ahead", "80")],
    indirect=["gpu"],
)
def test_step_runs_on_a_played_gpu_and_reports_figures(name, gpu, ahead, tmp_path):
    """The whole check, with a GPU whose memory is the host's."""
    found = dict(STEPS[name].run(Check(ahead, "cuda", tmp_path)))

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
    assert "boundary: skipped the check's time was over" in capsys.readouterr().out
    assert "| skipped: the check's time was over |" in (tmp_path / "REPORT-CPU.md").read_text()


def test_steps_fit_into_the_time_of_the_check():
    assert sum(step.budget_s for step in STEPS.values()) <= 60 * command.MINUTES
    assert max(step.budget_s for step in STEPS.values()) <= processes.ENOUGH_S / 2


@pytest.mark.parametrize("name", [name for name in STEPS if name not in NOT_ON_A_PROCESSOR])
def test_step_runs_on_a_cpu_and_reports_figures(name, bundle, tmp_path):
    with device_of("cpu"):
        found = list(STEPS[name].run(Check(bundle, "cpu", tmp_path)))

    assert found
    assert all(isinstance(part, str) for figure in found for part in figure)


def test_machine_code_for_a_gpu_is_left_alone_on_a_processor(ahead, tmp_path):
    with device_of("cpu"):
        assert "made without a GPU" not in str(list(STEPS["pipeline"].run(Check(ahead, "cpu", tmp_path))))


@pytest.mark.parametrize("name", sorted(NOT_ON_A_PROCESSOR))
def test_step_without_its_hardware_says_what_is_missing(name, bundle, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(Skip, match=r"NVIDIA GPUs alone|cuda-python is not installed"):
        list(STEPS[name].run(Check(bundle, "cpu", tmp_path)))


def test_rows_that_stay_in_memory_fail_the_step_that_is_about_them(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(placed_rows, "open_device_rows", lambda *arguments: None)
    with device_of("cpu"), pytest.raises(Conflict, match="expected rows on the device, got none"):
        list(STEPS["device-rows"].run(Check(bundle, "cpu", tmp_path)))


def test_check_runs_its_steps_in_processes_and_writes_a_report(bundle, tmp_path, capsys):
    options = ["--bundle", str(bundle), "--out", str(tmp_path)]
    assert command.main(["check", "--device", "cpu", "--only", "about,boundary,device-rows,tensorrt", *options]) == 0

    said = capsys.readouterr().out
    assert re.search(r"^rows by place, 500 candidates, device busy over wall: \d+%$", said, re.M)
    assert re.search(r"^rows by place, 500 candidates, engine over executable: \d+\.\d\d$", said, re.M)
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


def played(monkeypatch, code):
    """Has the processes of steps run this code; returns the commands, in order."""
    start, commands = processes.subprocess.Popen, []

    def run(arguments, **options):
        commands.append(arguments)
        return start([sys.executable, "-c", code, *arguments[5:]], **options)

    monkeypatch.setattr(processes.subprocess, "Popen", run)
    return commands


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.abort()", "ended by SIGABRT"),
        ("import sys; print('x', file=sys.stderr); sys.exit(3)", "x"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import time; time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_process_that_crashes_or_hangs_fails_one_step(code, why, bundle, monkeypatch):
    if "sleep" in code:
        monkeypatch.setattr(processes, "ENOUGH_S", 1.0)
    commands = played(monkeypatch, code)
    outcomes = list(processes.run_steps(["boundary", "xla"], bundle, "cuda", time.monotonic() + 240))
    assert [(o.step, o.result, o.why) for o in outcomes] == [("boundary", FAILED, why), ("xla", FAILED, why)]
    assert [command[6] for command in commands] == ["boundary,xla", "xla"]


def test_what_a_step_has_started_ends_with_its_process(bundle, monkeypatch):
    code = (
        "import os, subprocess, sys\n"
        "run = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        'print(\'{"figure": ["pid", "%d"]}\' % run.pid, flush=True); os.abort()'
    )
    played(monkeypatch, code)
    (outcome,) = processes.run_steps(["boundary"], bundle, "cpu", time.monotonic() + 60)
    ((_, pid),) = outcome.figures
    until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


def test_step_that_the_end_of_the_check_cuts_off_is_skipped_unless_it_had_enough_time(bundle, monkeypatch):
    played(monkeypatch, "import time; time.sleep(600)")
    outcomes = list(processes.run_steps(["boundary", "xla"], bundle, "cpu", time.monotonic() + 0.5))
    assert [(o.result, o.why) for o in outcomes] == [
        (SKIPPED, "the check's time was over after 0 s of it"),
        (SKIPPED, "the check's time was over"),
    ]


def test_steps_that_set_how_a_library_is_loaded_have_processes_of_their_own(bundle):
    order = ["boundary", "xla-recorded", "xla-unrecorded", "boundary"]
    commands = []
    with pytest.MonkeyPatch.context() as patch:
        start = processes.subprocess.Popen
        patch.setattr(processes.subprocess, "Popen", lambda c, **options: commands.append(c[6]) or start(c, **options))
        outcomes = list(processes.run_steps(order, bundle, "cpu", time.monotonic() + 60))
    assert commands == order
    assert [o.result for o in outcomes] == [PASSED, SKIPPED, SKIPPED, PASSED]


def test_failed_step_keeps_earlier_figures_and_its_output(bundle, tmp_path, monkeypatch):
    played(
        monkeypatch,
        "import sys; from dataclasses import replace\n"
        "from tests.gpu.__main__ import main; from tests.gpu.steps import STEPS\n"
        "def step(check):\n    yield 'rows', '5'\n    raise ValueError('off by one')\n"
        "STEPS['boundary'] = replace(STEPS['boundary'], run=step); sys.exit(main(sys.argv[1:]))",
    )
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
        Outcome("xla", PASSED, seconds=2.4, processor_s=1.23, figures=[["x|y", "1"]]),
        Outcome("http", FAILED, "E: line\none | two"),
        Outcome("tensorrt", SKIPPED, "none here"),
    ]
    text = markdown("NVIDIA H200", {"driver": "1"}, outcomes, STEPS)
    assert f"| xla | {STEPS['xla'].answers} | passed | 2 | {STEPS['xla'].budget_s} | 1.2 |" in text
    assert f"| http | {STEPS['http'].answers} | failed: E: line one / two | 0 |" in text
    assert "| x/y | 1 |" in text
    sides = [["sent, load", "2"], ["sent, error", "3"], ["by place, load", "4"]]
    text = markdown("NVIDIA H200", {}, [Outcome("xla", PASSED, figures=sides)], STEPS)
    assert "| | sent | by place |\n|---|---|---|\n| load | 2 | 4 |\n| error | 3 |  |" in text
    assert file_name("NVIDIA H200 / x") == "REPORT-NVIDIA-H200-x.md"
