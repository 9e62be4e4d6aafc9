"""Compile *.proto into sets of descriptors (`make -C loadtest protos`). Needs grpcio-tools; nothing else here does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Serialized FileDescriptorSet, imports first -> folder of its sources.
TARGETS = {
    "serving/codecs/protos.binpb": "serving/codecs/protos",
    "processor/extensions/deeprec/predict.binpb": "processor/extensions/deeprec",
}


def generate(target: str) -> bytes:
    folder = ROOT / TARGETS[target]
    sources = sorted(path.name for path in folder.glob("*.proto"))
    # A separate process: the compiler brings a protobuf library other than TensorFlow's, and the two crash together.
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        command = [*protoc, f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", *sources]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("protos: compilation failed")
        return out.read_bytes()


if __name__ == "__main__":
    for target in TARGETS:
        (ROOT / target).write_bytes(generate(target))
        print(f"{target}: written", file=sys.stderr)
