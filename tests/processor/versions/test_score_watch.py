"""What is concluded from the scores of a host's versions, over rollbacks, errors and former canaries."""

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.engines import USERS, publish, request, watch_scores
from tests.support.packages import write_package


def test_canary_check_error_of_one_model_spares_the_others(root, open_processor, monkeypatch, caplog):
    write_package(root, model="able", users=USERS)
    processor = open_processor()
    sketch = processor.host.sketch

    def broken(version):
        if version.manifest.model == "able":
            raise RuntimeError("out of order")
        return sketch(version)

    monkeypatch.setattr(processor.host, "sketch", broken)
    watch_scores(processor)
    processor.process(request([1]))
    watch_scores(processor)
    assert processor.host.score_watch.trend("small", 1).scores[0].count == 1
    assert "cannot check the statistics of model able" in caplog.text


def test_monitoring_continues_after_a_rollback_beyond_memory(root, open_processor):
    for step in (1, 2, 3):
        publish(root, step, [step], tag=step, dense_seed=step)
    processor = open_processor(undo_depth=1)
    processor.batch_process([request([n], seed=n) for n in range(10)])
    watch_scores(processor)
    processor.rollback("small", Generation(1, 1))
    processor.batch_process([request([1, 2, 3]) for _ in range(20)])
    watch_scores(processor)
    processor.process(request([1]))
    watch_scores(processor)
    scores_since = processor.host.score_watch.trend("small", 1).scores[0]
    assert scores_since.count == 1, "more than before the rollback, and yet counted anew"
    assert (scores_since.bins >= 0).all()


def test_judge_of_a_former_canary_is_removed(root, open_processor):
    write_package(root, 2, users=USERS)
    policy = {"labels": {"stable": 1, "canary": 2}, "split": {"stable": 1, "canary": 1}}
    processor = open_processor(clock=FakeClock(), policies={"small": ModelPolicy.parse(policy, "model.small")})
    watch_scores(processor)
    assert set(processor.host.score_watch._canary_judges) == {("small", 2)}
    processor.host.set_policy("small", {"split": {"stable": 1}})
    watch_scores(processor)
    assert not processor.host.score_watch._canary_judges
