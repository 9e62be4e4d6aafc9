from freshet_serving.processor.sessions.stages import staging_count


def test_each_stage_has_two_buffers_and_one_is_filled():
    assert [staging_count(stages) for stages in (1, 2)] == [3, 5]
