from dataclasses import fields
from typing import get_type_hints

from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig, SessionOptions


def test_process_takes_its_options_from_json():
    options = {"sessions": 2, "groups": {"a": {"models": ["m"], "cpus": "0"}}}
    assert SessionConfig.of(options) == SessionConfig(sessions=2, groups={"a": GroupConfig(["m"], cpus="0")})


def test_group_may_override_every_session_option():
    hints, own = get_type_hints(SessionOptions), get_type_hints(GroupConfig)
    for option in fields(SessionOptions):
        assert own[option.name] == hints[option.name] | None
        assert getattr(GroupConfig(), option.name) is None
