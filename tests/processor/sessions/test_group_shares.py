"""Groups of sessions whose queue several models and API keys share."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Overloaded
from freshet_serving.processor.watching.stats import total
from tests.processor.sessions.fakes import Answers, FakeReplica, assert_answers, group, held


def test_saturated_model_and_key_are_refused_and_not_the_others():
    clock, replicas, answers = FakeClock(), {name: FakeReplica({1: 1.0}) for name in ("busy", "light")}, Answers()
    for name, replica in replicas.items():
        replica.model = name
    with group(clock=clock, max_queue_rows=10_000) as sessions:
        with held(replicas["busy"], sessions, answers):
            for number in range(4):
                work = answers.work(replicas["busy"], number, [number], clock.now_s() + 8.0)
                work.sender = "loud"
                sessions.enqueue(work)
            for model, sender in (("light", "loud"), ("light", ""), ("busy", "quiet")):
                sessions.check_room(4.5, model=model, sender=sender)
            with pytest.raises(Overloaded):
                sessions.check_room(4.5, model="busy", sender="loud")
            sessions.enqueue(answers.work(replicas["light"], 9, [9], clock.now_s() + 4.5))
        answers.wait(6)


@pytest.mark.parametrize("options", [{}, {"compute": "inline"}])
def test_large_requests_give_way_while_several_models_are_asked(options):
    answers, replicas = Answers(), [FakeReplica({1: 2e-4, 4: 8e-4}) for _ in range(2)]
    replicas[1].model = "light"
    with group(clock=FakeClock(), max_batch_rows=16, **options) as sessions:

        def batches(replica, rows):
            before = total(sessions.statistics()).batches
            sessions.enqueue(answers.work(replica, 0, list(range(rows))))
            while sessions.inline and sessions.run_once():
                pass
            assert_answers(answers.wait(1)[0], range(rows))
            sessions.check_room(None)
            return total(sessions.statistics()).batches - before

        assert batches(replicas[0], 16) == 1
        assert batches(replicas[1], 1) == 1
        assert batches(replicas[0], 8) == 1
        assert batches(replicas[0], 16) == 4
