import json
from dataclasses import asdict

from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.serve_config import ServeConfig
from tests.support.extensions import needs


def test_ports_options_come_from_the_configuration():
    config = ServeConfig("r", max_body_bytes=9, default_timeout_ms=250.0, model_control="explicit", admin_token="t")
    options = config.front_options("1.2", processes=1)
    assert type(options) is FrontendOptions
    assert options == FrontendOptions(
        version="1.2", max_body_bytes=9, default_timeout_ms=250.0, model_control="explicit", admin_token="t"
    )
    assert options.default_timeout_s == 0.25


@needs("recorder")
def test_processes_share_the_disk_limit_for_recorded_requests():
    config = ServeConfig("r", record="somewhere", record_max_bytes=9 << 20)
    assert config.front_options("", processes=3).record_max_bytes == 3 << 20


def test_port_options_round_trip_as_json():
    options = ServeConfig("r", trace_endpoint="http://c:4318", admin_token="t").front_options("9", processes=2)
    assert FrontendOptions(**json.loads(json.dumps(asdict(options)))) == options


def test_token_is_not_shown():
    assert "secret" not in repr(FrontendOptions(admin_token="secret"))
