"""`make image-check`: every stage of the Dockerfile built, started, asked and replaced; loadtest/results/image.md.

Images are built from the last commit, as `docker build` in a fresh clone does, kernels compiled. A container is a copy
of the image's files and a process that is PID 1 in a namespace of its own, under the image's user, environment and
entrypoint; read-only leaves it nothing to write to but /dev/shm. Each container is new, and serves `--sample`: seconds
run from its start to its first answer over HTTP. Replacing: four clients ask over connections that they keep while a
new container is started, asked and preferred, and the old one gets SIGTERM.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.bench.cold_start import checkout
from loadtest.reports.report import machine, opening, origin, table
from tests.image.builder import BASE, ROOT, Builder, missing
from tests.image.container import Container
from tests.image.trial import WAYS, replace_under_load, try_start

REPORT = ROOT / "loadtest" / "results" / "image.md"
STAGES = ("serve", "serve-all", "train")
SERVING = ("serve", "serve-all")
REPLACEMENTS = 5


def main() -> int:
    """Return 0 if all of it works, 1 if not, 2 if images cannot be built here."""
    parser = argparse.ArgumentParser(prog="make image-check", description=__doc__)
    parser.add_argument("--only", choices=STAGES, action="append", help="only this stage; may be repeated")
    parser.add_argument("--out", type=Path, default=REPORT)
    options = parser.parse_args()
    if complaint := missing():
        print(f"image-check: {complaint}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"machine": machine(), "origin": origin("image-check", "IMAGE_ARGS", sys.argv[1:])}
    with tempfile.TemporaryDirectory(prefix="freshet-image-") as held:
        work = Path(held)
        # Other users are to reach what lies here.
        work.chmod(0o755)
        tree = checkout("HEAD", work / "tree")
        builder = Builder(work)
        try:
            _check(builder, tree, options, results)
        except subprocess.CalledProcessError as error:
            print(f"image-check: {error.cmd}: {(error.stderr or error.stdout)[-2000:]}", file=sys.stderr)
            return 1
        finally:
            builder.close()
    options.out.write_text(page(results))
    print(page(results))
    complaints = [start for start in results["starts"] if start["complaint"]]
    return 1 if complaints or results["replaced"]["failures"] or results["train"]["status"] else 0


def _check(builder: Builder, tree: Path, options: argparse.Namespace, results: dict[str, Any]) -> None:
    builder.prepare_base()
    results["base"] = builder.base
    results["base_megabytes"] = builder.megabytes(BASE)
    results["images"], results["starts"] = [], []
    results["replaced"], results["train"] = {"replacements": 0, "answers": 0, "failures": []}, {"status": 0}
    for stage in options.only or STAGES:
        print(f"image-check: building {stage}", file=sys.stderr)
        began_s = time.monotonic()
        builder.build(stage, tree)
        seconds = time.monotonic() - began_s
        megabytes = builder.megabytes(f"freshet-{stage}")
        results["images"].append({"stage": stage, "megabytes": megabytes, "build_s": seconds})
        if stage in SERVING:
            print(f"image-check: starting {stage}", file=sys.stderr)
            results["starts"] += [asdict(try_start(builder, stage, way)) for way in WAYS]
        if stage == "serve":
            results["replaced"] = replace_under_load(builder, stage, REPLACEMENTS)
        if stage == "train":
            results["train"] = _train(builder)


def _train(builder: Builder) -> dict[str, Any]:
    """Train in the image on a table of its own, as its user."""
    config = builder.config("train")
    root = builder.unpack("freshet-train")
    with Container(root, config, ["demo", "--exit-after", "1"]) as container:
        status, said = container.wait()
    return {"status": status, "said": said[-600:] if status else ""}


def page(results: dict[str, Any]) -> str:
    """Return the report."""
    base = results["base_megabytes"]
    lines = opening("The images", __doc__ or "", results)
    lines += [f"Base: {results['base']}, {base} MB.", ""]
    lines.append(
        table(
            ("stage", "MB", "over its base, MB", "seconds to build"),
            [
                (image["stage"], image["megabytes"], image["megabytes"] - base, f"{image['build_s']:.0f}")
                for image in results["images"]
            ],
        )
    )
    lines += ["", "To the first answer of a new container:", ""]
    starts = [
        (
            f"{one['stage']}, {one['how']}",
            *(f"{one[name]:.1f}" for name in ("wall_s", "cpu_s")),
            one["complaint"] or "none",
        )
        for one in results["starts"]
    ]
    lines.append(table(("container", "seconds", "of a processor", "complaints"), starts))
    replaced, train = results["replaced"], results["train"]
    told = ": ".join((f"{len(replaced['failures'])} failures", *replaced["failures"][:5]))
    lines += ["", f"Replaced {replaced['replacements']} times under load: {replaced['answers']} answers, {told}.", ""]
    lines.append(f"`freshet demo` in the image `train`: exit status {train['status']}. {train.get('said', '')}")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
