"""What the README shows must work as pasted."""

import re
import tomllib
from pathlib import Path

from models.train_config import parse_config
from serving.serve_config import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_the_training_configuration_is_valid():
    config = parse_config(tomllib.loads(blocks("toml")[0]))
    assert [f.name for f in config.features] == ["user_id", "price", "tags"]
    assert (config.publish.full_rows, config.publish.delta_rows) == (80000, 2000)


def test_the_serving_configuration_is_valid(tmp_path):
    _, text = blocks("toml")
    file = tmp_path / "serve.toml"
    file.write_text(text)
    policy = load_config({"repository": "repository"}, {}, str(file)).policies()["ctr"]
    assert (policy.labels, policy.split) == ({"stable": 3, "canary": 4}, {"stable": 95, "canary": 5})
    assert (policy.sticky_input, policy.shadow, policy.shadow_share) == ("user_id", "next", 0.1)


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
