"""Build one model: FOLDER FAMILY MODEL. Run as a file, by the Python of the family's environment."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> None:
    folder, family, model = sys.argv[1:]
    # Not this folder, which Python puts first: modules here are named as the frameworks are.
    sys.path[0] = str(Path(__file__).parents[4])
    module = importlib.import_module(f"loadtest.bench.foreign_models.builders.{family}")
    build = getattr(module, "MODELS", {}).get(model) or getattr(module, model)
    build(Path(folder))


if __name__ == "__main__":
    main()
