"""What a scrape says of a repository in an object store."""

from pathlib import Path

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import opened, publish
from tests.serving.fakes import FakeProcessor
from tests.serving.telemetry.test_version_metrics import scraped
from tests.support.packages import make_delta


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def repository(bucket, tmp_path):
    return opened(bucket, tmp_path / "mirror", max_nbytes=1 << 20)


@pytest.fixture
def metrics(repository):
    lifecycle = Lifecycle()
    lifecycle.open(FakeProcessor(repository=repository))
    return Metrics(lifecycle)


def test_store_requests_are_reported_by_kind_and_outcome(bucket, repository, metrics, tmp_path):
    ChangeLog.of(publish(repository, tmp_path, users=range(20))).publish(make_delta(1, [1]))
    before = scraped(metrics)
    put = ("freshet_store_requests_total", ("kind", "put"), ("outcome", "answered"))
    failed = ("freshet_store_requests_total", ("kind", "list"), ("outcome", "failed"))
    assert before[put] >= 5
    assert before["freshet_store_bytes_total", ("direction", "sent")] > 1000
    assert failed not in before
    bucket.down = True
    with pytest.raises(NotReady):
        repository.models()
    after = scraped(metrics)
    assert after[failed] == 1
    assert after[put] == before[put]


def test_mirror_disk_use_is_reported_with_its_limit(repository, metrics, tmp_path):
    publish(repository, tmp_path, users=range(20))
    repository.mirror.tidy()
    samples = scraped(metrics)
    assert samples["freshet_mirror_limit_bytes",] == 1 << 20
    assert 0 < samples["freshet_mirror_bytes",] <= 1 << 20
    assert samples["freshet_store_poll_age_seconds",] == 0
    assert samples["freshet_store_listing_age_seconds",] == 0


def test_folder_repository_has_no_store_metrics(tmp_path):
    assert not [key for key in scraped() if "store" in key[0] or "mirror" in key[0]]


def test_every_metric_is_documented(metrics):
    text = (Path(__file__).parents[4] / "docs" / "reference" / "metrics.md").read_text()
    told = {line.split()[2] for line in metrics.scrape().decode().splitlines() if line.startswith("# TYPE freshet_")}
    ours = {name for name in told if name.startswith(("freshet_store_", "freshet_mirror_"))}
    assert len(ours) == 6
    assert [name for name in ours if f"`{name}`" not in text] == []
