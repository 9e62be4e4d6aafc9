"""The lists of models, and the environments that they are built in, made by pip under one folder, each once."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

MODELS, FREE_LENGTHS = "models", "free-lengths"
LISTS = {name: Path(__file__).parent / f"{name.replace('-', '_')}.toml" for name in (MODELS, FREE_LENGTHS)}
AIMS = {MODELS: 76, FREE_LENGTHS: 10}
"""By list, how many of its models are to be served."""
OWN = ""
"""The environment of this repository, which has ONNX."""
TORCH, TENSORFLOW, TREES = "torch", "tf", "trees"
BUILDERS = {
    OWN: ("onnx_by_hand",),
    TORCH: ("deepctr_torch", "torch_sequences", "torch_bags", "torch_lengths", "zoo"),
    TENSORFLOW: ("deepctr", "tf1", "tfrs", "keras2", "keras3"),
    TREES: ("sklearn", "boosted_trees"),
}
ENVIRONMENTS = {builder: environment for environment, builders in BUILDERS.items() for builder in builders}
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


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """One line of the list: a model, what it is, its family, and the family as the report names it."""

    name: str
    about: str
    family: str
    title: str

    @property
    def builder(self) -> str:
        """Module of `builders` that builds it: DeepCTR's zoo has the environment and the columns of DeepCTR."""
        return "deepctr" if self.family == "zoo" and self.name.startswith("deepctr_") else self.family

    @property
    def environment(self) -> str:
        return ENVIRONMENTS[self.builder]


def entries(listed: str = MODELS) -> list[ForeignEntry]:
    """Return a list's models, in its order."""
    families = tomllib.loads(LISTS[listed].read_text())
    return [
        ForeignEntry(name, about, family, section["title"])
        for family, section in families.items()
        for name, about in section["models"].items()
    ]


class NoEnvironment(Exception):
    """An environment that cannot be made; the text is the reason."""


def python_of(folder: Path, name: str) -> Path:
    """Return the Python of an environment, made first if it is not there; raise NoEnvironment if pip cannot."""
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
