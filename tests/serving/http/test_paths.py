import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, FreshetError, NotFound
from freshet_serving.serving.http.paths import Route, parse


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/healthz", Route("up")),
        ("/monitoring/prometheus/metrics", Route("metrics")),
        ("/", Route("root")),
        ("/docs", Route("docs")),
        ("/metrics", Route("metrics")),
        ("/v2", Route("server")),
        ("/v2/health/live", Route("live")),
        ("/v2/health/ready", Route("ready")),
        ("/v1/models/ctr", Route("status", "ctr")),
        ("/v1/models/ctr:predict", Route("predict", "ctr")),
        ("/v1/models/ctr/metadata", Route("metadata", "ctr")),
        ("/v1/models/ctr/versions/3", Route("status", "ctr", 3)),
        ("/v1/models/ctr/versions/3:predict", Route("predict", "ctr", 3)),
        ("/v1/models/ctr/versions/3/metadata", Route("metadata", "ctr", 3)),
        ("/v1/models/ctr/labels/stable:predict", Route("predict", "ctr", label="stable")),
        ("/v1/models/ctr/labels/a%2Fb/metadata", Route("metadata", "ctr", label="a/b")),
        ("/v1/models/a%20b%3A:predict", Route("predict", "a b:")),
        ("/v1/models/ctr%3Apredict", Route("predict", "ctr")),
        ("/v1/models/ctr/versions/3%3apredict", Route("predict", "ctr", 3)),
        ("/v1/models/a%3Ab:predict", Route("predict", "a:b")),
        ("/v1/models/a%3Ab", Route("status", "a:b")),
        ("/v1/%6dodels/ctr/metad%61ta", Route("metadata", "ctr")),
        ("/v2/models/ctr/%69nfer", Route("infer", "ctr")),
        ("/v1/models/CTR:predict", Route("predict", "CTR")),
        ("/V1/Models/ctr/Versions/3:predict", Route("predict", "ctr", 3)),
        ("/v1/models/ctr/LABELS/Stable:classify", Route("classify", "ctr", label="Stable")),
        ("/v1/models/ctr/versions/0:regress", Route("regress", "ctr")),
        ("/v1/models/ctr/versions/0", Route("status", "ctr")),
        ("/v1/models/ctr:processor", Route("processor", "ctr")),
        ("/api/predict/ctr", Route("processor", "ctr")),
        ("/v2/models/ctr/config", Route("config", "ctr")),
        ("/v2/models/ctr/versions/3/stats", Route("stats", "ctr", 3)),
        ("/v2/models/stats", Route("stats")),
        ("/v2/repository/index", Route("index")),
        ("/v2/repository/main/index", Route("index")),
        ("/v2/repository/models/ctr/load", Route("load", "ctr")),
        ("/v2/repository/models/a%20b/unload", Route("unload", "a b")),
        ("/v2/systemsharedmemory/status", Route("shm_status")),
        ("/v2/systemsharedmemory/region/in/status", Route("shm_status", region="in")),
        ("/v2/systemsharedmemory/region/in/register", Route("shm_register", region="in")),
        ("/v2/systemsharedmemory/unregister", Route("shm_unregister")),
        ("/v2/models/ctr", Route("model", "ctr")),
        ("/v2/models/ctr/ready", Route("model_ready", "ctr")),
        ("/v2/models/ctr/infer", Route("infer", "ctr")),
        ("/v2/models/ctr/versions/12/infer", Route("infer", "ctr", 12)),
        ("/v2/models/ctr/versions/12/ready", Route("model_ready", "ctr", 12)),
        ("/v2/models/ctr/versions/12", Route("model", "ctr", 12)),
        ("/v2/models/infer", Route("model", "infer")),
    ],
)
def test_path_names_an_action_and_its_model(path, route):
    assert parse(path.encode()) == route


@pytest.mark.parametrize(
    "path",
    [
        "/v1", "/v1/models", "/v1/models/", "/v1/models/:predict", "/v1/models/m:Predict", "/v1/models/m:",
        "/v1/models/m/versions", "/v1/models/m/METADATA", "/v1/models/m/versions/x:predict",
        "/v1/models/m/versions/1/labels/a", "/v1/models/m/labels/", "/v1/models/m/versions/" + "9" * 30,
        "/v1/models/%ff", "/v1/models/m:Classify", "/v1/models/m/metadata:predict",
    ],
)  # fmt: skip
def test_unknown_path_below_v1_is_a_malformed_request(path):
    with pytest.raises(BadInput):
        parse(path.encode())


@pytest.mark.parametrize(
    "path",
    [
        "/doc", "", "/v3", "/v2/x", "/v2/models", "/v2/models/", "/v2/models/m/x", "/v2/models/m/versions/x", "/V2",
        "/admin/models",
    ],
)  # fmt: skip
def test_unknown_path_elsewhere_is_not_found(path):
    with pytest.raises(NotFound):
        parse(path.encode())


def test_path_length_is_limited():
    with pytest.raises(BadInput, match="at most 2048 bytes"):
        parse(b"/v1/models/" + b"m" * 5000)


@given(st.lists(st.sampled_from(b"/ : v1 v2 models m versions 3 labels predict %ff infer".split())))
def test_arbitrary_path_is_routed_or_refused_with_a_freshet_error(parts):
    with contextlib.suppress(FreshetError):
        parse(b"".join(parts))
