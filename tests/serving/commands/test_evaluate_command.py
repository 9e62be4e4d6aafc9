import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.retrieval_run import RetrievalRun
from freshet_serving.processor.errors import BadInput
from tests.models.evaluation.conftest import evaluated  # noqa: F401
from tests.models.training.retrieval_logs import ITEMS, raw_config, write_log
from tests.serving.commands.running import run

pytestmark = pytest.mark.tensorflow
TRAIN = """
[model]
name = "mixed"
[data]
path = "{path}"
label = "clicked"
time = "hour"
[features.user]
kind = "id"
side = "user"
[publish]
repository = "{repository}"
[evaluate]
by = ["channel"]
"""


@pytest.fixture
def config(evaluated, tmp_path):  # noqa: F811
    path = tmp_path / "train.toml"
    path.write_text(TRAIN.format(path=evaluated.data.path, repository=evaluated.repository))
    return str(path)


def test_training_file_selects_what_to_score_and_tables_the_results(config):
    told = run("evaluate", "--config", config, "--generation", "1.1")
    assert "mixed 1.1 on " in told
    assert "over 400 rows; predicted 0." in told
    assert "grouped by user: AUC 0." in told
    assert "a.b<c>" in told
    assert "(empty)" in told


def test_publish_settings_and_data_names_do_not_matter(config, evaluated, tmp_path):  # noqa: F811
    path = tmp_path / "train.toml"
    text = path.read_text().replace("[publish]", "[publish]\ndelta_seconds = 2")
    path.write_text(text.replace("[data]", '[data]\nformat = "parquet"'))
    copy = tmp_path / "rows.of.monday"
    copy.write_bytes(Path(evaluated.data.path).read_bytes())
    assert "over 400 rows" in run("evaluate", "--config", config, "--data", str(copy))


def test_model_is_evaluated_without_training_file_as_json_lines(evaluated):  # noqa: F811
    given = ("--repository", str(evaluated.repository), "--data", evaluated.data.path, "--label", "clicked")
    told = run("evaluate", "mixed", *given, "--by", "hour", "--skip", "50", "--rows", "300", "--json")
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert {line["what"] for line in lines} == {"all", "decile", "slice"}
    assert (lines[0]["rows"], lines[0]["group"]) == (300, "user")
    assert {line["generation"] for line in lines} == {str(max(evaluated.scores))}
    assert EvaluateConfig().by == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "evaluate: expected either a model of the repository or --config"),
        (("mixed",), "expected --repository, --data and --label with a model's name"),
        (("mixed", "--generation", "x"), r"generation: expected 'version\.step' such as '3\.17'"),
    ],
)
def test_missing_input_is_reported_in_one_line(arguments, message):
    with pytest.raises(BadInput, match=message):
        run("evaluate", *arguments)


def test_towers_are_evaluated_by_recall_among_all_items(tmp_path):
    write_log(tmp_path / "log.csv")
    raw = raw_config(tmp_path, publish={"delta_rows": 0})
    RetrievalRun(parse_config(raw)).full()
    lines = [f"[{section}]\n" + _keys(keys) for section, keys in raw.items() if section != "features"]
    lines += [f"[features.{name}]\n" + _keys(keys) for name, keys in raw["features"].items()]
    (tmp_path / "train.toml").write_text("\n".join(lines))
    given = ("evaluate", "--config", str(tmp_path / "train.toml"), "--skip", "800")
    assert "recall@10 0." in run(*given)
    (line,) = (json.loads(line) for line in run(*given, "--json").splitlines() if line.startswith("{"))
    assert line["what"] == "retrieval"
    assert line["recall@100"] == 1.0
    assert (line["items"], line["generation"]) == (ITEMS, "1.0")


def _keys(keys):
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
