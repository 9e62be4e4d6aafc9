import re
from dataclasses import fields
from pathlib import Path

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.sessions.placement import GroupConfig, SessionConfig
from freshet_serving.processor.watching import CanaryBounds
from freshet_serving.serving.process_layout import Layout
from freshet_serving.serving.serve_config import EXTENSIONS, ServeConfig, check_extensions, load_config
from tests.support.extensions import needs


def test_precedence_is_command_line_then_environment_then_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('repository = "file"\nhttp_port = 1\nsessions = 1\ndrain_s = 2\nmodels = ["a"]\n')
    environ = {"FRESHET_HTTP_PORT": "2", "FRESHET_SESSIONS": "2", "FRESHET_MODELS": "b, c"}
    config = load_config({"http_port": 3, "sessions": None}, environ, str(file))
    assert (config.repository, config.http_port, config.sessions, config.admin_port) == ("file", 3, 2, 8502)
    assert config.drain_s == 2.0
    assert config.models == ["b", "c"]


def test_environment_may_name_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('repository = "r"')
    assert load_config({}, {"FRESHET_CONFIG": str(file)}).repository == "r"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 1", "config: unknown key 'port'"),
        ('http_port = "1"', "config: http_port: expected an integer, got a string"),
        ("http_port = true", "config: http_port: expected an integer, got true or false"),
        ("models = [1]", "config: models: expected a list of strings"),
        ("given = []", "unknown key 'given'"),
        ("groups = 1", "config: groups: expected sections such as [groups.name]"),
        ("[groups]\nx = 1", "config: groups: expected sections such as [groups.name]"),
        ("[groups.a]\ncores = 1", "config: groups.a.cores: unknown key; known: models, sessions"),
        (
            "[groups.a]\np99_ms = 1" + "0" * 400,
            "config: groups.a.p99_ms: expected a number of 64 bits, got a larger one",
        ),
        ('[groups.a]\nsessions = "1"', "config: groups.a.sessions: expected an integer, got a string"),
        ("[groups.a]\nmodels = [1]", "config: groups.a.models: expected a list of strings, got a list"),
        ("[groups.a]\nsessions = true", "config: groups.a.sessions: expected an integer, got true or false"),
        ("x = ", "not valid TOML"),
    ],
)
def test_mistake_in_the_file_gives_a_one_line_error(tmp_path, text, message):
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_config({"repository": "r"}, {}, str(file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_gives_a_one_line_error(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        load_config({"repository": "r"}, {}, str(tmp_path / "none.toml"))


def test_former_option_in_the_environment_is_refused_with_what_to_do():
    options = {"repository": "models"}
    with pytest.raises(BadInput, match=r"^FRESHET_MAX_NODES: unknown option \(ended: always 4,000,000"):
        load_config(options, {"FRESHET_MAX_NODES": "5"})
    with pytest.raises(BadInput, match=r"FRESHET_KEYS: .* set FRESHET_API_KEYS in the environment"):
        load_config(options, {"FRESHET_KEYS": "keys.toml"})
    load_config(options, {"FRESHET_ADMIN_TOKEN": "a", "FRESHET_KEY": "b", "FRESHET_TORCH_PYTHON": "c", "FRESHET_": ""})


def test_mistake_in_the_environment_names_the_variable():
    with pytest.raises(BadInput, match="FRESHET_HTTP_PORT: expected an integer, got 'x'"):
        load_config({"repository": "r"}, {"FRESHET_HTTP_PORT": "x"})


def test_repository_is_required():
    with pytest.raises(BadInput, match="repository: expected"):
        load_config({}, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"http_port": 70000}, "http_port: expected a port"),
        ({"workers": 257}, "workers: expected 0 .what is best here. to 256, got 257"),
        ({"sessions": -1}, "sessions: expected 0"),
        ({"drain_s": float("nan")}, "drain_s: expected 0 to 3600"),
        ({"log_level": "loud"}, "log_level: expected one of debug"),
        ({"admin_host": "0.0.0.0"}, "expected a loopback address without admin_token or api_keys"),
        ({"admin_token": "a b"}, "admin_token: expected printable ASCII"),
        ({"poll_interval_s": 0.0}, "poll_interval_s"),
    ],
)
def test_out_of_range_option_gives_a_one_line_error(options, message):
    with pytest.raises(BadInput, match=message):
        load_config({"repository": "r", **options}, {})


def test_token_allows_the_admin_port_on_other_hosts():
    assert ServeConfig("r", admin_host="0.0.0.0", admin_token="t").admin_host == "0.0.0.0"
    for host in ("localhost", "127.0.0.9", "::1"):
        assert ServeConfig("r", admin_host=host).admin_host == host


def test_token_is_not_shown():
    assert "secret" not in repr(ServeConfig("r", admin_token="secret"))


def test_groups_of_sessions_are_sections_of_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text(
        'repository = "r"\n'
        '[groups.baseline]\nmodels = ["ctr"]\nsessions = 1\ncpus = "0"\n'
        '[groups.rest]\nmodels = ["*"]\nbatch_window_us = 200\n'
    )
    config = load_config({}, {}, str(file))
    options = Layout(1, "threads", 0, "").session_options(config)
    assert options["groups"] == {
        "baseline": {"models": ["ctr"], "sessions": 1, "cpus": "0"},
        "rest": {"models": ["*"], "batch_window_us": 200},
    }
    assert SessionConfig.of(options).groups["baseline"] == GroupConfig(["ctr"], sessions=1, cpus="0")
    assert options["compute"] == "threads"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute": "gpu"}, "compute: expected one of auto, inline, threads, got 'gpu'"),
        ({"threads_per_session": 0}, "threads_per_session: expected 1 to 256, got 0"),
        ({"device_stages": -1}, "device_stages: expected 0 (none) to 64, got -1"),
        (
            {"compute": "inline", "device_stages": 1},
            "compute: expected auto or threads with device_stages, got 'inline'",
        ),
        ({"batch_window_us": -1.0}, "batch_window_us: expected 0 to 10000000, got -1"),
        ({"default_timeout_ms": -1.0}, "default_timeout_ms: expected 0 (none) to 3600000, got -1"),
        ({"compute": "inline", "groups": {"a": {}}}, "compute: expected auto or threads with groups, got 'inline'"),
    ],
)
def test_options_of_the_sessions_are_checked(options, message):
    with pytest.raises(BadInput) as caught:
        ServeConfig("r", **options)
    assert str(caught.value) == message


def test_zero_default_timeout_means_none():
    assert ServeConfig("r").default_timeout_s is None
    assert ServeConfig("r", default_timeout_ms=250.0).default_timeout_s == 0.25


@needs("trials")
def test_policy_in_the_documentation_is_valid(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "models.md").read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "serve.toml").write_text(toml)
    policy = load_config({"repository": "r"}, {}, str(tmp_path / "serve.toml")).policies()["ctr"]
    assert policy.guard == CanaryBounds()
    assert policy.split == {"stable": 95, "canary": 5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 1", "config: model: expected sections such as [model.name]"),
        ("[model.ctr]\nsplits = 1", "model.ctr: unknown key 'splits'"),
        ("models = ['a']\n[model.ctr]\nversions = 'all'", "model.ctr: not among models"),
    ],
)
def test_invalid_policy_is_named(tmp_path, text, words):
    (tmp_path / "serve.toml").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_config({"repository": "r"}, {}, str(tmp_path / "serve.toml"))
    assert words in str(caught.value)


def test_staleness_limit_must_exceed_the_poll_interval():
    with pytest.raises(BadInput, match=r"max_staleness_s: expected 0 or more than poll_interval_s .60., got 30"):
        ServeConfig("repository", max_staleness_s=30.0, poll_interval_s=60.0)
    assert ServeConfig("repository", poll_interval_s=60.0).max_staleness_s == 0.0


@pytest.mark.parametrize("key", ["trust", "models"])
def test_list_of_blank_names_is_refused_and_empty_allowed(key):
    with pytest.raises(BadInput, match=f"FRESHET_{key.upper()}: expected names separated by commas, got ' , '"):
        load_config({"repository": "r"}, {f"FRESHET_{key.upper()}": " , "})
    assert getattr(load_config({"repository": "r"}, {f"FRESHET_{key.upper()}": ""}), key) == []


@pytest.mark.parametrize(
    ("options", "well"),
    [
        ({}, True),
        ({"tls_cert": "c", "tls_key": "k"}, True),
        ({"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}, True),
        ({"tls_cert": "c"}, False),
        ({"tls_key": "k"}, False),
        ({"tls_client_ca": "a"}, False),
    ],
)
def test_certificate_needs_its_key_and_client_authority_needs_both(options, well):
    if well:
        assert ServeConfig("r", **options).credentials["tls_cert"] == options.get("tls_cert", "")
    else:
        with pytest.raises(BadInput, match="tls_cert, tls_key: expected both, or neither"):
            ServeConfig("r", **options)


def test_key_file_allows_the_admin_port_on_other_hosts():
    assert ServeConfig("r", admin_host="0.0.0.0", api_keys="keys.toml").admin_host == "0.0.0.0"


@needs("online_features")
class TestOnlineStores:
    """Stores by the option and by sections of the file."""

    def test_addresses_with_several_hosts_keep_their_commas(self):
        stores = ServeConfig("r", online_store=["main=redis://a:1/0", "other=redis+cluster://b:1", "c:2"]).stores()
        assert [(s.name, s.url) for s in stores] == [("main", "redis://a:1/0"), ("other", "redis+cluster://b:1,c:2")]

    def test_a_section_says_more(self):
        (store,) = ServeConfig("r", online_stores={"main": {"url": "rediss://a", "password_env": "SECRET"}}).stores()
        assert (store.name, store.password_env) == ("main", "SECRET")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"online_store": ["redis://a"]}, r"online_store: expected NAME=redis://HOST:PORT, got no name"),
            ({"online_store": ["main=redis://a", "main=redis://b"]}, r"online_store: expected 'main' once"),
            ({"online_store": ["main=redis://:pass@a"]}, r"online_stores.main.url: expected no user or password"),
            (
                {"online_store": ["main=redis://a"], "online_stores": {"main": {"url": "redis://a"}}},
                r"online_store: 'main' has a section",
            ),
            ({"online_stores": {"main": {"urll": "redis://a"}}}, r"online_stores.main.urll: there is no such option"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, options, message):
        with pytest.raises(BadInput, match=message):
            ServeConfig("r", **options)


def test_sample_needs_no_repository_and_refuses_one_beside_it():
    assert load_config({"sample": True}, {}).sample
    assert load_config({"sample": True}, {"FRESHET_REPOSITORY": "/repository"}).sample, "an image sets the variable"
    with pytest.raises(BadInput, match="expected no repository beside it"):
        load_config({"sample": True, "repository": "r"}, {})
    with pytest.raises(BadInput, match="--sample serves a sample"):
        load_config({}, {})


@pytest.mark.parametrize(
    "store", [{"online_store": ["main=redis://a"]}, {"online_stores": {"main": {"url": "redis://a"}}}]
)
def test_online_store_without_the_extension_is_refused_by_name(store, without_extensions):
    without_extensions("online_features")
    with pytest.raises(BadInput, match=r"online_stores\.main needs the extension 'online_features': FRESHET_EXT"):
        ServeConfig(repository="r", **store)
    assert ServeConfig(repository="r").stores() == []


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
