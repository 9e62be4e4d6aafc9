"""The environments that builders run in, made by pip under one folder; each is made once."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from loadtest.bench.foreign_models.catalogue import OWN, TENSORFLOW, TORCH, TREES

PACKAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    TORCH: (
        ("torch==2.13.0", "numpy", "onnx", "onnxscript", "scikit-learn", "pandas", "tqdm", "requests", "tensordict",
         "pyre-extensions", "iopath", "torchmetrics==1.9.0", "gensim", "spacy", "transformers", "fastparquet",
         "opencv-contrib-python", "einops", "wrapt", "pillow"),
        ("deepctr-torch==0.3.0", "torch-rechub==0.9.0", "torchfm==0.7.0", "pytorch-widedeep==1.7.0", "torchrec==1.8.0",
         "fbgemm-gpu-cpu==1.8.0", "torchvision==0.28.0"),
    ),
    TENSORFLOW: (
        ("tensorflow-cpu==2.21.0", "tf_keras==2.21.0", "pandas", "scikit-learn", "requests"),
        ("tensorflow-recommenders==0.7.7", "deepctr==0.9.4", "keras-rs==0.4.0"),
    ),
    TREES: (
        ("scikit-learn", "skl2onnx", "onnxmltools", "lightgbm", "catboost", "pandas", "onnx"),
        ("xgboost",),
    ),
}  # fmt: skip
"""By environment: packages, and packages without those that they ask for, which would bring other builds of these."""
INSTALL_S = 1200


class NoEnvironment(Exception):
    """An environment that cannot be made; the text is the reason."""


def python_of(folder: Path, name: str) -> Path:
    """Return the Python of an environment, made first if it is not there.

    Args:
        folder: Folder of the environments.
        name: Its name; OWN for this very one.

    Raises:
        NoEnvironment: pip cannot install a package.
    """
    if name == OWN:
        return Path(sys.executable)
    home = folder / name
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        venv.create(home, with_pip=True)
        packages, alone = PACKAGES[name]
        for arguments in (packages, ("--no-deps", *alone)):
            command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
            except subprocess.CalledProcessError as error:
                raise NoEnvironment(f"pip cannot make {name}: {error.stderr.strip().splitlines()[-1]}") from None
            except subprocess.TimeoutExpired:
                raise NoEnvironment(f"pip did not make {name} in {INSTALL_S} s") from None
        done.touch()
    return python
