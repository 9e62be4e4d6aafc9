"""What the README shows must work as pasted."""

import re
import tomllib
from pathlib import Path

from models.config import parse_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_the_training_configuration_is_valid():
    (text,) = blocks("toml")
    config = parse_config(tomllib.loads(text))
    assert [f.name for f in config.features] == ["user_id", "price", "tags"]
    assert (config.publish.full_rows, config.publish.delta_rows) == (80000, 2000)


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_file_that_is_linked_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_python_examples_compile():
    for text in blocks("python"):
        compile(text, "README.md", "exec")
