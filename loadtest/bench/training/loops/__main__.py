"""`make -C loadtest loops`: training loops of PyTorch and Keras that publish; loadtest/results/training-loops.md.

Each network is built and exported by its framework in a process of its own, imported, and served in this process.
Then it learns two batches at a time; the PyTorch hook or the Keras callback publishes what they changed, and after each
delta fresh requests are scored by the framework and by what is served. Requests have strings, integers and ids that the
vocabulary or the table lacks, and lists of several lengths (0 where the network takes it, 1, 3, 20). A score may be off
by 1e-5, above 1 relatively. A network that the product does not import, or whose loop it does not publish, counts as
refused, with the reason that it gave. The result of each network is kept: `--only` replaces those that it names.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.bench import needs
from loadtest.bench.training.loops.followed import Loop, SideProcess, follow
from loadtest.bench.training.loops.loops_page import page, passed
from loadtest.reports.report import machine, origin

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "loadtest" / "results"
TORCH_PYTHON = os.environ.get("FRESHET_TORCH_PYTHON") or str(ROOT / "build" / "training-loops-venv" / "bin" / "python")
SIDES = {
    "torch": (TORCH_PYTHON, ("torch_networks", "torch_sequences")),
    "keras": (sys.executable, ("keras_networks",)),
}
"""By framework: the Python that has it, and the modules that list its networks."""


def names_of(framework: str) -> list[str]:
    """Return the names of a framework's networks, read from their modules without importing the framework."""
    names = []
    for module in SIDES[framework][1]:
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
        names += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{framework}-")
        ]
    return names


def run(framework: str, networks: Sequence[str], deltas: int, log: Path, progress: Progress) -> Iterator[Loop]:
    """Run a framework's loops in one process of it; yield what became of each."""
    python, _ = SIDES[framework]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT / "build" / "keras-rs"), "CUDA_VISIBLE_DEVICES": ""}
    command = [python, "-m", f"loadtest.bench.training.loops.{framework}_side"]
    with SideProcess(command, ROOT, environment, log) as side:
        for network in networks:
            task = progress.add_task(network, total=deltas)
            with tempfile.TemporaryDirectory() as folder:
                loop = follow(side.ask, network, Path(folder), deltas, partial(progress.advance, task))
            progress.update(task, description=f"{network}: {loop.verdict}")
            progress.console.print(f"{network}: {loop.verdict} {loop.message}", markup=False, soft_wrap=True)
            yield loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="make -C loadtest loops", description=__doc__)
    listed = {framework: names_of(framework) for framework in SIDES}
    known = [name for names in listed.values() for name in names]
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help="some networks alone")
    parser.add_argument("--deltas", type=int, default=50, help="deltas of each")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    if set(options.only) & set(listed["torch"]):
        needs.interpreter(Path(TORCH_PYTHON), "name one that has torch in FRESHET_TORCH_PYTHON")
    about = {"machine": machine(), "origin": origin("-C loadtest loops", "ARGS", [])}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "training-loops.json"
    loops = {name: Loop(**loop) for name, loop in json.loads(kept.read_text()).items()} if kept.exists() else {}
    with Progress(*columns, console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as logs:
        for framework, names in listed.items():
            if chosen := [name for name in names if name in options.only]:
                for loop in run(framework, chosen, options.deltas, Path(logs) / framework, progress):
                    loops[loop.network] = loop
                    ordered = {name: loops[name] for name in known if name in loops}
                    kept.write_text(json.dumps({name: asdict(one) for name, one in ordered.items()}, indent=1) + "\n")
                    written = page(list(ordered.values()), __doc__ or "", about)
                    (options.out / "training-loops.md").write_text(written)
    print(written)
    return int(not passed([loops[name] for name in options.only]))


if __name__ == "__main__":
    sys.exit(main())
