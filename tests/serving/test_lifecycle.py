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


def test_a_part_is_there_once_the_whole_is(lifecycle, part):
    with pytest.raises(NotReady, match="models are loading"):
        part.processor()
    assert (part.ready, part.draining) == (False, False)
    host = Host()
    lifecycle.open(host)
    assert part.processor() is host.predictor
    assert part.ready


def test_a_part_is_as_ready_as_the_whole_and_says_why_it_is_not(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    host.ready, host.stale, host.concerns = False, "model 'ctr': too old", ("model 'ctr' version 3: waiting",)
    assert (part.ready, part.unready_reason) == (False, "model 'ctr': too old")
    assert part.reasons == {"reasons": ["model 'ctr' version 3: waiting"]}


def test_a_part_drains_with_the_whole_and_answers_to_the_end(lifecycle, part):
    host = Host()
    lifecycle.open(host)
    answering = part.processor()
    lifecycle.drain()
    assert (part.draining, part.ready, part.unready_reason) == (True, False, "server: draining")
    assert lifecycle.close() is host
    assert part.processor() is answering
