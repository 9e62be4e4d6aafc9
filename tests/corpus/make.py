"""Writes entries that are not in the corpus yet.

    python -m tests.corpus.make NAME ...

by the code of this checkout, which must be as committed. Rows, weights and requests follow from fixed seeds; times, and
what versions of libraries write, do not. An entry that is there is never written again; another one is a
recipe in RECIPES with a name of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus import foreign, parts, zoo
from tests.corpus.entry import FROZEN
from tests.corpus.story import LOWER_PRECISION, Story

ROOT = Path(__file__).parents[2]
WRITERS = ("freshet_serving", "serving", "models", "compiler", "processor")
"""Folders of the code that writes packages and chains."""

IN_TENSORFLOW = {"needs": ("tensorflow",)}


@dataclass(frozen=True)
class Recipe:
    """How an entry is made, and what is said of it (tests.corpus.entry.Entry)."""

    tell: Callable[[Story], None]
    holds: str
    options: dict[str, Any] = field(default_factory=dict)


RECIPES = {
    "zoo-deepfm": Recipe(
        zoo.deepfm,
        "ids, hashed strings, ragged lists with two combiners, floats with NaN; deltas of rows and weights, a "
        "rollback, a delta after it",
    ),
    "zoo-wide-deep": Recipe(
        zoo.wide_deep,
        "a cross, buckets, hour and weekday, a table with several rows an id, rows side by side with a mask",
    ),
    "zoo-dcn": Recipe(zoo.dcn, "cross layers"),
    "zoo-mmoe": Recipe(zoo.mmoe, "two labels and a fused output"),
    "zoo-esmm": Recipe(zoo.esmm, "three outputs, one of which is a product of the others"),
    "zoo-two-tower": Recipe(zoo.two_tower, "vectors beside the score"),
    "user-once": Recipe(
        zoo.user_once,
        "a graph divided into a user's and a candidates' part, asked in both ways for one user's candidates",
    ),
    "histories": Recipe(
        zoo.histories,
        "a sequence of ids from an item's table and one of its own, and of floats with NaN; none, one, as many events "
        "as are read and more, asked by rows and for one user; a rollback, a delta after it",
    ),
    "histories-timed": Recipe(zoo.histories_timed, "a sequence with times in milliseconds, read by their differences"),
    "row-types": Recipe(
        zoo.row_types,
        "tables in float16, bfloat16, int8 and float32; rows removed, a snapshot, a rollback to before it",
    ),
    "columns": Recipe(
        zoo.columns, "the dense graph's input as an output: every kind of feature, every combiner, transforms"
    ),
    "columns-row-types": Recipe(
        zoo.columns_row_types, "the dense graph's input as an output, of tables of every row type"
    ),
    "held": Recipe(zoo.held, "deltas behind a gate: one released, one rejected, one after that"),
    "signed": Recipe(
        zoo.signed,
        "manifest and every record signed by a TEST-ONLY key; deltas, a snapshot, a rollback",
        {"signing_key": zoo.TEST_KEY, "needs": ("cryptography",)},
    ),
    "first-format": Recipe(zoo.first_format, "deltas/<step>.safetensors alone, as before there were records"),
    "int8": Recipe(
        zoo.int8,
        "executables in int8 by ONNX Runtime, float32 beside them",
        {"tolerance": LOWER_PRECISION, "computes": "onnxruntime int8"},
    ),
    "bfloat16": Recipe(
        zoo.bfloat16,
        "executables in bfloat16 by OpenVINO, compiled anew from ONNX, float32 beside them",
        {"tolerance": LOWER_PRECISION, "computes": "openvino bfloat16", "needs": ("openvino",)},
    ),
    "xla": Recipe(
        zoo.xla,
        "executables by XLA alone, compiled anew from StableHLO",
        {"computes": "xla float32", "needs": ("jaxlib",)},
    ),
    "import-savedmodel": Recipe(
        foreign.saved_model, "an imported SavedModel: hashes, a vocabulary, ragged strings, no part left to TensorFlow"
    ),
    "import-flat": Recipe(
        foreign.flat, "an imported SavedModel of a number, with an output that follows the rank of the request"
    ),
    "import-exact": Recipe(
        foreign.exact, "an imported SavedModel with exact whole numbers, labels of a table and names of its own"
    ),
    "import-onnx": Recipe(foreign.from_onnx, "an imported ONNX file"),
    "import-onnx-lists": Recipe(
        foreign.lists_from_onnx,
        "an imported ONNX file over lists of free length: a stage that reads rows, and how much it computes",
    ),
    "import-onnx-weights": Recipe(
        foreign.weights_from_onnx,
        "an imported ONNX file over lists of free length whose stage has weights that deltas change: a matrix, a "
        "vector, a scalar",
    ),
    "restored-parts": Recipe(
        parts.restored, "features of an entity that went back without rows and weights, and these without the features"
    ),
    "import-fallback": Recipe(
        foreign.fallback, "an imported SavedModel with a fallback partition, which makes a table's keys", IN_TENSORFLOW
    ),
    "import-fallback-whole": Recipe(
        foreign.fallback_whole, "an imported SavedModel that runs in TensorFlow as a whole", IN_TENSORFLOW
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.make", description=__doc__)
    parser.add_argument("--frozen", type=Path, default=FROZEN, help="the folder of entries")
    parser.add_argument("entry", nargs="+", choices=sorted(RECIPES), metavar="NAME")
    arguments = parser.parse_args()
    commit = written_by()
    for name in arguments.entry:
        make(arguments.frozen, name, commit)
        print(f"{name}: written by the code of commit {commit[:12]}")
    return 0


def make(frozen: Path, name: str, commit: str) -> None:
    """Write one entry; raise FileExistsError if it exists."""
    recipe = RECIPES[name]
    with Story(frozen, name, recipe.holds, commit, **recipe.options) as story:
        recipe.tell(story)
        story.end()


def written_by() -> str:
    """The commit that last changed the code that writes; raises RuntimeError where that is not as committed."""
    if changed := _git("status", "--porcelain", "--", *WRITERS):
        raise RuntimeError(f"expected the code that writes as it was committed, got changes:\n{changed}")
    return _git("log", "-1", "--format=%H", "--", *WRITERS)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
