"""`make -C loadtest gpu-extra`: the extra `gpu` in a fresh virtual environment, by the commands of docs/how-to/gpu.md.

It takes gigabytes and minutes, so no test runs it; what it prints is judged by said(), which a test does run. There:
ONNX Runtime's own providers for GPUs are listed, jax has its CUDA plug-in, and a server without a GPU serves a package
that has code for one, on the CPU, and says why in one line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV, GUIDE = ROOT / "build" / "gpu-venv", ROOT / "docs" / "how-to" / "gpu.md"
PROVIDERS = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
SEEN = """
import importlib.util, json, sys
import onnxruntime
found = {"providers": onnxruntime.get_available_providers(), "jax": importlib.util.find_spec("jax_plugins") is not None}
if len(sys.argv) > 1:
    import logging
    lines = []
    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    logging.getLogger("freshet").addHandler(Keep())
    from freshet_serving.processor.engine import Processor, ProcessorConfig
    with Processor.initialize(ProcessorConfig(sys.argv[1], sessions=1)) as processor:
        found["models"] = list(processor.predictor.models())
    found["lines"] = [line for line in lines if "refused" in line]
print(json.dumps(found))
"""


def commands() -> list[str]:
    """The guide's commands, for this checkout."""
    (block,) = re.findall(r"```\n(pip install 'freshet-serving\[gpu\]'\n.*?)```", GUIDE.read_text(), re.DOTALL)
    return [line.replace("freshet-serving[gpu]", f"{ROOT}[gpu]") for line in block.splitlines()]


def said(found: dict[str, object]) -> list[str]:
    """What is wrong with what the environment printed."""
    wrong = []
    if found["providers"] != PROVIDERS:
        wrong.append(f"expected ONNX Runtime's providers {PROVIDERS}, got {found['providers']}")
    if not found["jax"]:
        wrong.append("expected jax's CUDA plug-in")
    lines = found.get("lines", ["refused: "])
    if not isinstance(lines, list) or not lines or len(set(lines)) != len(lines):
        wrong.append(f"expected one line for each kind of code that has no GPU here, got {lines}")
    return wrong


def look(python: Path, repository: Path | None = None) -> dict[str, object]:
    """What the environment finds; with a repository, also what it serves of it."""
    arguments = [str(python), "-c", SEEN, *([str(repository)] if repository else [])]
    done = subprocess.run(arguments, cwd=VENV, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(repository: str = "") -> int:
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    for command in commands():
        subprocess.run(f"{VENV}/bin/{command} --quiet --no-cache-dir", shell=True, cwd=ROOT, check=True)
    took_s = time.monotonic() - started_s
    nbytes = sum(path.lstat().st_size for path in VENV.rglob("*"))
    found = look(VENV / "bin" / "python", Path(repository).absolute() if repository else None)
    print(f"{nbytes / 2**30:.1f} GiB in {took_s:.0f} s", *map(str, found.values()), sep="\n")
    for line in (wrong := said(found)):
        print(f"gpu-extra: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
