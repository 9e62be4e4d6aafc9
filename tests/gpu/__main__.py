"""`make gpu-check`, `make -C loadtest gpu-bundle` and `gpu-compile`: the GPU side on a machine with one, and without.

    python -m tests.gpu bundle --out build/gpu-bundle       with TensorFlow; no GPU
    python -m tests.gpu compile                             with TensorFlow and jax with CUDA; no GPU
    python -m tests.gpu check --bundle build/gpu-bundle     with a GPU; no TensorFlow
    python -m tests.gpu check --device cpu                  the same on a processor: proves the check itself

The exit status is 1 where a step failed, else 0; without a GPU one line says what is missing, and it is 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.report import FAILED, Outcome, file_name, markdown

ROOT = Path(__file__).parents[2]
BUNDLE, REPORTS_OF_CPUS = ROOT / "build" / "gpu-bundle", ROOT / "build"
REPORTS = ROOT / "docs" / "reference" / "gpu"
COMPILED = ROOT / "loadtest" / "results" / "gpu-compile.md"
BUCKETS = "1,16,64,256,1024,4096"
MINUTES = 8.0


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
    steps = verbs.add_parser("steps", help="run steps here, for a check, and write what they find as JSON lines")
    steps.add_argument("names", type=_names)
    steps.add_argument("--folder", type=Path, required=True, help="to work in")
    for verb in (check, steps):
        verb.add_argument("--bundle", type=Path, default=BUNDLE)
        verb.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    check.add_argument("--only", type=_names, default=[], help="steps, separated by commas")
    check.add_argument("--minutes", type=float, default=MINUTES, help=f"for all steps [{MINUTES:g}]")
    check.add_argument("--out", type=Path, help="folder of the report [docs/reference/gpu; build for --device cpu]")
    options = parser.parse_args(arguments)
    if options.verb == "bundle":
        return _bundle(options)
    if options.verb == "compile":
        return _compile(options)
    return _steps(options) if options.verb == "steps" else _check(options)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _bundle(options: argparse.Namespace) -> int:
    from tests.gpu.bundle import write_bundle

    if options.out.exists() and any(options.out.iterdir()):
        print(f"gpu-bundle: {options.out} is not empty", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    buckets = [int(bucket) for bucket in _names(options.buckets)]
    written = write_bundle(options.out, options.rows, buckets, _names(options.targets))
    nbytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    print(f"gpu-bundle: {written}, {nbytes / 2**20:.1f} MiB")
    return 0


def _compile(options: argparse.Namespace) -> int:
    from importlib.metadata import version

    from tests.gpu import compiled, engines

    names = _names(options.only) or compiled.NAMES
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


def _steps(options: argparse.Namespace) -> int:
    from tests.gpu.processes import serve_steps

    serve_steps(options.names, options.bundle, options.device, options.folder)
    return 0


def _check(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    if options.device == "cuda" and (missing := _without_gpu()):
        print(f"gpu-check skipped: {missing}")
        return 0
    if not (options.bundle / "bundle.json").is_file():
        hint = "run `make -C loadtest gpu-bundle`, here or elsewhere"
        print(f"gpu-check: no bundle in {options.bundle}: {hint}", file=sys.stderr)
        return 2
    from tests.gpu.engine_steps import UTILISATION
    from tests.gpu.processes import run_steps
    from tests.gpu.steps import STEPS

    names = options.only or list(STEPS)
    if stray := [name for name in names if name not in STEPS]:
        print(f"gpu-check: expected some of {', '.join(STEPS)}, got {stray[0]!r}", file=sys.stderr)
        return 2
    outcomes = list[Outcome]()
    for outcome in run_steps(names, options.bundle, options.device, began_s + 60 * options.minutes):
        outcomes.append(outcome)
        print(f"{outcome.step}: {outcome.result} {outcome.why}".rstrip(), flush=True)
    about = {what: value for o in outcomes if o.step == "about" for what, value in o.figures}
    device = about.get("GPU", "CPU" if options.device == "cpu" else "unknown")
    about = {"date": time.strftime("%Y-%m-%d"), "target": options.device} | about
    folder = options.out or (REPORTS if options.device == "cuda" else REPORTS_OF_CPUS)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(device)
    path.write_text(markdown(device, about, outcomes, STEPS))
    if logs := [f"{o.step}\n{o.log}" for o in outcomes if o.log]:
        path.with_suffix(".log").write_text("\n".join(logs))
    for what, value in (figure for o in outcomes for figure in o.figures):
        if what.endswith(UTILISATION):
            print(f"{what}: {value}")
    processor_s = sum(o.processor_s for o in outcomes)
    print(f"gpu-check: {path}; {time.monotonic() - began_s:.0f} s, {processor_s:.0f} s of processors")
    return 1 if any(o.result == FAILED for o in outcomes) else 0


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
