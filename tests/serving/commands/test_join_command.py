"""Who is told of calibration, and what a refusal holds up."""

import io
import re
import tomllib
from pathlib import Path

from rich.console import Console
from typer.main import get_command

from freshet_serving.models.config.train_config import load_config, parse_config
from freshet_serving.models.streams.join_run import ScoreSums
from freshet_serving.models.streams.joined_folder import LABEL, WEIGHT
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.repository.warmup import TIME
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.commands.join_command import CalibrationReporter

ROOT = Path(__file__).parents[3]
SUMS = {"1.7": ScoreSums(2.0, 1.0, 10), "2.0": ScoreSums(3.0, 3.0, 10)}


class Admin:
    """An admin port that raises what it is given, by generation."""

    def __init__(self, **raises):
        self.raises, self.told = raises, []

    def send_json(self, method, path, document):
        if (error := self.raises.get(document["generation"])) is not None:
            raise error
        self.told.append((method, path, document))


def told_by(admin, times=1):
    out = io.StringIO()
    tell = CalibrationReporter(admin, Console(file=out, width=200))
    for _ in range(times):
        tell("a b", SUMS)
    return out.getvalue().splitlines()


def test_label_sums_are_reported_per_generation():
    admin = Admin()
    assert told_by(admin) == []
    route = "/admin/models/a%20b/calibration"
    assert admin.told == [
        ("POST", route, {"generation": "1.7", "scores": 2.0, "labels": 1.0, "rows": 10}),
        ("POST", route, {"generation": "2.0", "scores": 3.0, "labels": 3.0, "rows": 10}),
    ]


def test_refused_generation_does_not_block_others_and_is_logged_once():
    admin = Admin(**{"1.7": FreshetError("version 1 of model 'a b' is not loaded")})
    assert told_by(admin, times=2) == ["could not report calibration: version 1 of model 'a b' is not loaded"]
    assert [document["generation"] for _, _, document in admin.told] == ["2.0", "2.0"]


def test_unresponsive_server_is_contacted_once_per_file():
    admin = Admin(**{"1.7": NotReady("admin: no answer")})
    assert told_by(admin) == ["could not report calibration: admin: no answer"]
    assert admin.told == []


def test_joining_page_matches_the_readme_features_and_existing_options():
    page = (ROOT / "docs" / "how-to" / "continuous-training.md").read_text().split("## Join delayed labels\n", 1)[1]
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    raw = tomllib.loads(text)
    config = parse_config({**raw, "data": {**raw["data"], "follow": True}})
    assert config.features == load_config(ROOT / "examples" / "train.toml").features
    assert (config.data.label, config.data.weight, config.data.time) == (LABEL, WEIGHT, TIME)
    (command,) = re.findall(r"^freshet join (.*?) &", page.replace("\\\n", ""), re.MULTILINE)
    known = {option for parameter in get_command(app).commands["join"].params for option in parameter.opts}
    assert set(re.findall(r"--[\w-]+", command)) <= known
    assert "--record-share 1 " in page
