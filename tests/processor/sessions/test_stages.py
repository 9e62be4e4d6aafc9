"""Stages are an extension's; without it whoever asks for them is refused by name."""

from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.sessions.placement import plan
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.sessions.stages import staging_count

CORES = frozenset({0, 1})


def test_group_without_stages_needs_no_extension(without_extensions):
    without_extensions("device_stages")
    assert list(plan(SessionConfig(), CORES, [CORES], 2)) == ["default"]


def test_option_is_refused_without_the_extension(without_extensions):
    without_extensions("device_stages")
    own = {"ctr": replace(GroupConfig(), device_stages=1)}
    for config, field in ((SessionConfig(device_stages=1), ""), (SessionConfig(groups=own), "groups.ctr.")):
        with pytest.raises(BadInput, match=f"^{field}device_stages needs the extension 'device_stages': "):
            plan(config, CORES, [CORES], 2)


def test_each_stage_has_two_buffers_and_one_is_filled():
    assert [staging_count(stages) for stages in (1, 2)] == [3, 5]
