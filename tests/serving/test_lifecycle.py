"""A lifecycle, and the part of it that data ports are given."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.serving.lifecycle import Lifecycle


class Host:
    """A host with a predictor; ready, stale and concerns as a ModelHost has them."""

    def __init__(self):
        self.predictor, self.ready, self.stale, self.concerns = SimpleNamespace(), True, "", ()


@pytest.fixture
def lifecycle():
    return Lifecycle()


@pytest.fixture
def part(lifecycle):
    return lifecycle.part(lambda host: host.predictor)


def test_part_is_ready_once_the_whole_is_open(lifecycle, part):
    with pytest.raises(NotReady, match="models are loading"):
        part.processor()
    assert (part.ready, part.draining) == (False, False)
    host = Host()
    lifecycle.open(host)
    assert part.processor() is host.predictor
    assert part.ready


def test_part_shares_readiness_and_its_reason(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    host.ready, host.stale, host.concerns = False, "model 'ctr': too old", ("model 'ctr' version 3: waiting",)
    assert (part.ready, part.unready_reason) == (False, "model 'ctr': too old")
    assert part.reasons == {"reasons": ["model 'ctr' version 3: waiting"]}


def test_part_drains_with_the_whole_and_answers_until_closed(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    answering = part.processor()
    lifecycle.drain()
    assert (part.draining, part.ready, part.unready_reason) == (True, False, "server: draining")
    assert lifecycle.close() is host
    assert part.processor() is answering
