"""Processors whose rows are in a redis-server, and what plain numpy says they answer."""

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.tables.remote_rows import RemoteConfig
from freshet_serving.processor.tables.row_store import open_store
from tests.support.packages import make_inputs, make_weights, reference, tag_id

USERS = range(2000)
TIMEOUT_S = 2.0
PROBE = [0, 7, 1999, 2000, -5, 2**62, 7]


def opened(url, timeout_s=TIMEOUT_S, clock=None):
    return open_store(url, timeout_s, clock or SystemClock())


def processor(root, url, clock=None, **config):
    remote = RemoteConfig(url, ["small/*"], **({"timeout_s": TIMEOUT_S, "cache_rows": 0} | config))
    return Processor.initialize(ProcessorConfig(str(root), sessions=2, remote=remote), clock)


def scores(users, content=None):
    """What plain numpy says: `content` maps users to content numbers, default the version's own."""
    tags = [["a", "zz", "b", "c"][: n % 5] for n in range(len(users))]
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    content = dict.fromkeys(USERS, 0) if content is None else content
    return reference(content, tag_model, make_weights(0), users, tags, make_inputs(users)["floats"])


def assert_scores(engine, users, content=None):
    reply = engine.process(PredictRequest("small", make_inputs(users)))
    np.testing.assert_allclose(reply.outputs["score"][:, 0], scores(users, content), atol=1e-5)
