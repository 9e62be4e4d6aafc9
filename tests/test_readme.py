"""What the README shows is there; tests/e2e/test_readme_live.py pastes its commands."""

import re
import tomllib
from pathlib import Path

from freshet_serving.models.config.train_config import load_config, parse_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_readme_is_short_enough_for_a_landing_page():
    assert README.count("\n") <= 150


def test_training_configuration_is_valid_and_part_of_the_example():
    (text,) = blocks("toml")
    config, example = parse_config(tomllib.loads(text)), load_config(ROOT / "examples" / "train.toml")
    assert [f.name for f in config.features] == ["user_id", "tags", "price"]
    assert {f.name: f.kind for f in config.features}.items() <= {f.name: f.kind for f in example.features}.items()
    assert (config.model, config.data, config.publish) == (example.model, example.data, example.publish)


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_python_examples_compile():
    for text in blocks("python"):
        compile(text, "README.md", "exec")
