"""Every generation of a chain that was rolled back on the way scores as the trainer did when it was published."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.evaluation.generation_scorer import REQUEST_ROWS, GenerationScorer
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.tables.compaction import compact
from tests.models.evaluation.conftest import ROWS

pytestmark = pytest.mark.tensorflow
SCORE_TOLERANCE = 1e-5


def files(repository):
    return {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def test_any_generation_is_scored_as_trained_without_writing(evaluated):
    before = files(evaluated.repository)
    steps = sorted(generation.step for generation in evaluated.scores)
    assert len(steps) > 3
    assert 2 not in [link.step for link in change_log(evaluated).history.line()]
    for generation, wanted in evaluated.scores.items():
        with GenerationScorer(str(evaluated.repository), "mixed", generation) as scorer:
            assert scorer.generation == generation
            scores = scorer.score(evaluated.rows.columns, ROWS, ["score"])
        assert np.abs(scores - wanted).max() <= SCORE_TOLERANCE
    assert files(evaluated.repository) == before


def change_log(evaluated):
    found = ChangeLog(Repository(evaluated.repository).version("mixed"))
    found.look()
    return found


def test_scorer_defaults_to_the_served_generation_from_a_snapshot(evaluated, tmp_path):
    import shutil

    copy = tmp_path / "repository"
    shutil.copytree(evaluated.repository, copy)
    version = Repository(copy).version("mixed")
    assert compact(version, ChangeLog.of(version, whole=True)) is not None
    newest = max(evaluated.scores)
    with GenerationScorer(str(copy), "mixed") as scorer:
        assert scorer.generation == newest
        scores = scorer.score(evaluated.rows.columns, ROWS, ["score"])
    assert np.abs(scores - evaluated.scores[newest]).max() <= SCORE_TOLERANCE


def test_any_number_of_rows_is_scored_in_order(evaluated, monkeypatch):
    monkeypatch.setattr("freshet_serving.models.evaluation.generation_scorer.REQUEST_ROWS", 150)
    assert REQUEST_ROWS > 150
    with GenerationScorer(str(evaluated.repository), "mixed") as scorer:
        scores = scorer.score(evaluated.rows.columns, ROWS, ["score"])
        first = scorer.score(evaluated.rows.slice(0, 1).columns, 1, ["score"])
    assert np.abs(scores - evaluated.scores[max(evaluated.scores)]).max() <= SCORE_TOLERANCE
    assert abs(first[0] - scores[0]) <= SCORE_TOLERANCE


@pytest.mark.parametrize(
    ("model", "generation", "message"),
    [
        (
            "mixed",
            "1.99",
            r"generation 1\.99 of model 'mixed' is not in the repository: version 1 has had steps 0 to \d",
        ),
        ("mixed", "7.0", "version 7 is not in the repository, which holds 1"),
        ("other", "1.0", "'other'"),
    ],
)
def test_missing_model_or_generation_gives_a_one_line_error(evaluated, model, generation, message):
    with pytest.raises(NotFound, match=message) as caught:
        GenerationScorer(str(evaluated.repository), model, Generation.parse(generation))
    assert "\n" not in str(caught.value)
    with pytest.raises(FreshetError, match="is not a folder"):
        GenerationScorer(str(evaluated.repository / "nope"), "mixed")


def test_labels_must_match_the_model_outputs(evaluated):
    with GenerationScorer(str(evaluated.repository), "mixed") as scorer:
        assert scorer.outputs(["clicked"]) == ["score"]
        with pytest.raises(
            BadInput, match="expected outputs clicked, bought of one column, got a model 'mixed' with score"
        ):
            scorer.outputs(["clicked", "bought"])
