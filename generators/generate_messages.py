"""Compile *.proto into Python modules (`make -C loadtest protos`). Needs grpcio-tools; nothing else here does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Module -> folder of its sources.
TARGETS = {
    "serving/codecs/proto_files.py": "serving/codecs/protos",
    "processor/extensions/deeprec/predict_messages.py": "processor/extensions/deeprec",
}
CHUNK = 24


def generate(target: str) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    folder = ROOT / TARGETS[target]
    sources = sorted(path.name for path in folder.glob("*.proto"))
    # A separate process: the compiler brings a protobuf library other than TensorFlow's, and the two crash together.
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        command = [*protoc, f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", *sources]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("protos: compilation failed")
        files = FileDescriptorSet.FromString(out.read_bytes()).file
    text = [
        f'"""Compiled from {TARGETS[target]}/*.proto: one serialized FileDescriptorProto each, imports first.\n\n'
        'Written by `make -C loadtest protos`; do not edit.\n"""\n\n# fmt: off\n\nFILES = (\n'
    ]
    for file in files:
        data = file.SerializeToString(deterministic=True)
        lines = [f"    {data[at : at + CHUNK]!r}\n" for at in range(0, len(data), CHUNK)]
        text.append(f"    # {file.name}\n{''.join(lines)[:-1]},\n")
    return "".join([*text, ")\n"])


if __name__ == "__main__":
    for target in TARGETS:
        (ROOT / target).write_text(generate(target))
        print(f"{target}: written", file=sys.stderr)
