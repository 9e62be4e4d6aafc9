"""Shadows have metric families; a server without shadows has none."""

from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.watching import Sketch, StatsBlock
from freshet_serving.serving.extensions.trials.shadow_metrics import shadow_families


def version(number):
    outputs = [SimpleNamespace(name="score")]
    return SimpleNamespace(manifest=SimpleNamespace(model="ctr", version=number, outputs=outputs))


@pytest.fixture
def host():
    """A host of versions 3 and 4; the second is a shadow whose scores are half a point higher."""
    block = StatsBlock(1)
    block.note(0, np.full((4, 1), 0.5, np.float32))
    block.done(2)
    counted = {"differences": Sketch.total(1, [block]).to_json(), "dropped": 5}
    served = {number: version(number) for number in (3, 4)}
    return SimpleNamespace(
        catalogue={"ctr": SimpleNamespace(routes=SimpleNamespace(served=served))},
        evidence=lambda observer, one: counted if (observer, one) == ("shadow", served[4]) else None,
    )


def test_shadow_families_compare_scores(host):
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in shadow_families(host)
        for sample in family.samples
    }
    assert samples["freshet_shadow_requests_total", "ctr", "4"] == 2
    assert samples["freshet_shadow_dropped_total", "ctr", "4"] == 5
    assert samples["freshet_shadow_difference_mean", "ctr", "4", "score"] == 0.5
    assert not [key for key in samples if key[2] == "3"]


def test_no_shadow_has_no_families(host):
    host.evidence = lambda observer, one: None
    assert not list(shadow_families(host))
