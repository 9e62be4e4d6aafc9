"""An option of a missing extension is refused by the extension's name, if somebody set it."""

from dataclasses import fields

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.serve_config import EXTENSIONS, ServeConfig, check_extensions
from tests.support.extensions import needs

SET = {
    "admin_host": "::1",
    "admin_port": 0,
    "admin_token": "secret",
    "delta_guard": "strict",
    "device_rows_mb": 64,
    "import_timeout_s": 5.0,
    "import_memory_bytes": 1 << 33,
    "record": "recordings",
    "user_state_mb": 64,
}


@needs("admin", "auto_import", "device_rows", "user_state")
@pytest.mark.parametrize("option", EXTENSIONS)
def test_option_of_a_missing_extension_is_refused(option, without_extensions):
    config = ServeConfig("fake", **{option: SET[option]})
    check_extensions(config)
    without_extensions(EXTENSIONS[option], "explaining")
    with pytest.raises(BadInput, match=f"^{option} needs the extension '{EXTENSIONS[option]}': ") as refused:
        check_extensions(config)
    assert "secret" not in str(refused.value)


def test_options_that_nobody_set_are_not_refused(without_extensions):
    without_extensions("admin", "auto_import", "explaining", "guard")
    check_extensions(ServeConfig("fake"))
    check_extensions(ServeConfig("fake", delta_guard="off"))


@pytest.mark.parametrize("use", [{"model_control": "explicit"}, {"api_keys": "keys.toml"}])
def test_token_that_the_data_ports_know_is_not_refused(use, without_extensions):
    without_extensions("admin", "explaining")
    check_extensions(ServeConfig("fake", admin_token="secret", **use))


def test_every_option_exists():
    assert set(EXTENSIONS) <= {field.name for field in fields(ServeConfig)}
