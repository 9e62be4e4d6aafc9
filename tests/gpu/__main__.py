"""`make gpu-check`, `make -C loadtest gpu-bundle` and `gpu-compile`: the GPU side on a machine with one, and without.

    python -m tests.gpu bundle --out build/gpu-bundle       with TensorFlow; no GPU
    python -m tests.gpu compile                             with TensorFlow and jax with CUDA; no GPU
    python -m tests.gpu check --bundle build/gpu-bundle     with a GPU; no TensorFlow
    python -m tests.gpu check --device cpu                  the same on a processor: proves the check itself

Every step is a process of its own: what crashes, hangs or takes the device's memory costs that step. The exit status is
1 where a step failed, else 0; without a GPU one line says what is missing, and it is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.report import FAILED, SKIPPED, Outcome, file_name, markdown

ROOT = Path(__file__).parents[2]
BUNDLE, REPORTS = ROOT / "build" / "gpu-bundle", ROOT / "docs" / "reference" / "gpu"
COMPILED = ROOT / "loadtest" / "results" / "gpu-compile.md"
BUCKETS = "1,16,64,256,1024,4096"
TIMEOUT_S = 240.0
ENOUGH_S = 120.0
"""Time in which every step ends, twice the longest on an H200: one that has less may be slow and not hang."""
# With two minutes to install what it needs, a check fits into eight minutes of a device.
MINUTES = 6.0
LAST_CHARACTERS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    bundle = verbs.add_parser("bundle", help="write what a check takes along")
    bundle.add_argument("--out", type=Path, default=BUNDLE)
    bundle.add_argument("--rows", type=int, default=2000, help="of each of the 26 tables [2000]")
    bundle.add_argument("--buckets", default=BUCKETS, help=f"batch sizes [{BUCKETS}]")
    bundle.add_argument("--targets", default="", help="GPUs to compile for, such as cuda-sm_90; needs jax with CUDA")
    compiling = verbs.add_parser("compile", help="compile networks for GPUs and write a report")
    compiling.add_argument("--out", type=Path, default=COMPILED)
    compiling.add_argument("--only", default="", help="networks, separated by commas")
    check = verbs.add_parser("check", help="run every step and write the report")
    step = verbs.add_parser("step", help="run one step here and print what it found, as JSON")
    step.add_argument("name")
    for verb in (check, step):
        verb.add_argument("--bundle", type=Path, default=BUNDLE)
        verb.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        verb.add_argument("--seconds", type=float, default=3.0, help="length of each load [3]")
    check.add_argument("--only", default="", help="steps, separated by commas")
    check.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"for all steps; no later one starts [{MINUTES:g}]"
    )
    check.add_argument("--out", type=Path, default=REPORTS, help="folder of the report")
    options = parser.parse_args(arguments)
    if options.verb == "bundle":
        return _bundle(options)
    if options.verb == "compile":
        return _compile(options)
    return _step(options) if options.verb == "step" else _check(options)


def _bundle(options: argparse.Namespace) -> int:
    from tests.gpu.bundle import write_bundle

    if options.out.exists() and any(options.out.iterdir()):
        print(f"gpu-bundle: {options.out} is not empty", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    targets = [target for target in options.targets.split(",") if target]
    written = write_bundle(options.out, options.rows, [int(b) for b in options.buckets.split(",")], targets)
    nbytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    print(f"gpu-bundle: {written}, {nbytes / 2**20:.1f} MiB")
    return 0


def _compile(options: argparse.Namespace) -> int:
    from importlib.metadata import version

    from tests.gpu import compiled, engines

    names = [name for name in options.only.split(",") if name] or compiled.NAMES
    about, lines = [f"jaxlib {version('jaxlib')}"], []
    if engines.available():
        about.append(f"TensorRT-RTX {version('tensorrt-rtx-cu13-bindings')}")
    with_engines = compiled.ENGINE_TARGETS if engines.available() else ()
    for line in compiled.compile_all(names, compiled.XLA_TARGETS, with_engines):
        lines.append(line)
        print(line.name, line.part, line.made, flush=True)
    tried = list(compiled.ways()) if engines.available() and not options.only else []
    options.out.write_text(compiled.markdown(lines, about, tried))
    print(f"gpu-compile: {options.out}")
    return 1 if any(isinstance(made, str) for line in lines for made in line.made.values()) else 0


def _step(options: argparse.Namespace) -> int:
    from tests.gpu.bundled import Check, Skip
    from tests.gpu.steps import STEPS

    with tempfile.TemporaryDirectory(prefix="freshet-gpu-") as folder:
        found: list[tuple[str, str]] = []
        try:
            for figure in STEPS[options.name](Check(options.bundle, options.device, Path(folder), options.seconds)):
                found.append(figure)
        except Skip as why:
            print(json.dumps({"skipped": str(why)}))
        finally:
            if found:
                print(json.dumps({"figures": found}))
    return 0


def _check(options: argparse.Namespace) -> int:
    if options.device == "cuda" and (missing := _without_gpu()):
        print(f"gpu-check skipped: {missing}")
        return 0
    if not (options.bundle / "bundle.json").is_file():
        hint = "run `make -C loadtest gpu-bundle`, here or elsewhere"
        print(f"gpu-check: no bundle in {options.bundle}: {hint}", file=sys.stderr)
        return 2
    from tests.gpu.steps import STEPS

    chosen = [name.strip() for name in options.only.split(",") if name.strip()] or list(STEPS)
    if stray := [name for name in chosen if name not in STEPS]:
        print(f"gpu-check: one of {', '.join(STEPS)} wanted, got {stray[0]!r}", file=sys.stderr)
        return 2
    outcomes, ends_s = list[Outcome](), time.monotonic() + options.minutes * 60
    for name in chosen:
        meaning, left_s = (STEPS[name].__doc__ or "").strip(), ends_s - time.monotonic()
        over = f"the check's {options.minutes:g} minutes were over"
        if left_s > 0:
            cut = f"{over} after {left_s:.0f} s of it" if left_s < ENOUGH_S else ""
            outcomes.append(run_step(name, meaning, options, min(TIMEOUT_S, left_s), cut))
        else:
            outcomes.append(Outcome(name, meaning, SKIPPED, over))
        print(f"{name}: {outcomes[-1].result} {outcomes[-1].why}".rstrip(), flush=True)
    about = {what: value for o in outcomes if o.step == "about" for what, value in o.figures}
    device = about.get("GPU", "CPU" if options.device == "cpu" else "unknown")
    about = {"date": time.strftime("%Y-%m-%d"), "target": options.device} | about
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / file_name(device)
    path.write_text(markdown(device, about, [o for o in outcomes if o.step != "about" or o.result == FAILED]))
    print(f"gpu-check: {path}")
    if logs := [f"{o.step}\n{o.log}" for o in outcomes if o.log]:
        path.with_suffix(".log").write_text("\n".join(logs))
    return 1 if any(o.result == FAILED for o in outcomes) else 0


def run_step(
    name: str, meaning: str, options: argparse.Namespace, timeout_s: float = TIMEOUT_S, over: str = ""
) -> Outcome:
    """One step in a process of its own, whatever becomes of that. over: why it is skipped, not failed, at timeout_s."""
    command = [sys.executable, "-m", "tests.gpu", "step", name, "--bundle", str(options.bundle.absolute())]
    command += ["--device", options.device, "--seconds", str(options.seconds)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    outcome, started_s = Outcome(name, meaning), time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s)
        last = _last(done.stdout, None)
        said = json.loads(last) if last and (last.startswith("{") or not done.returncode) else {}
        outcome.figures = [[str(what), str(value)] for what, value in said.get("figures", ())]
        if "skipped" in said:
            outcome.result, outcome.why = SKIPPED, said["skipped"]
        elif done.returncode or not said:
            outcome.result, outcome.why = FAILED, _last(done.stderr) or f"ended with status {done.returncode}"
            outcome.log = done.stderr
    except subprocess.TimeoutExpired:
        outcome.result, outcome.why = (SKIPPED, over) if over else (FAILED, f"no answer within {timeout_s:g} s")
    except ValueError:
        outcome.result, outcome.why = FAILED, "what it printed is no JSON"
    outcome.seconds = time.perf_counter() - started_s
    return outcome


def _last(text: str, most: int | None = LAST_CHARACTERS) -> str:
    """The last line: of a traceback, the error's class and message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:most] if lines else ""


def _without_gpu() -> str:
    """What is missing for a check on a GPU; "" where there is one."""
    try:
        seen = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "no NVIDIA GPU is to be had here: nvidia-smi does not run"
    if seen.returncode or "GPU" not in seen.stdout:
        return "no NVIDIA GPU is to be had here: nvidia-smi lists none"
    code = "import sys, jax; sys.exit(not jax.devices('cuda'))"
    if subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode:
        return "there is a GPU, but no jax that sees it: install jax with CUDA"
    return ""


if __name__ == "__main__":
    sys.exit(main())
