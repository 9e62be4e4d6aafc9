"""What test_feed_kills kills beside `freshet delta follow`: a trainer that publishes rows and weights all the time.

    python -m tests.e2e.killed_feed train REPOSITORY
    python -m tests.e2e.killed_feed finish REPOSITORY

Content number n is published whole: what is served tells which.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from freshet_serving.models.publishing.publisher import Publisher
from tests.processor.backends.artefacts import make_weights
from tests.support.packages import rows_of

USERS, LAST = range(20), 3


def publish(publisher, content):
    publisher.take_served()
    rows = {"user": (np.array(USERS), rows_of(USERS, content))}
    return publisher.publish(rows=rows, dense=make_weights(content))


def main():
    what, repository = sys.argv[1:]
    publisher = Publisher(repository, "small")
    if what == "finish":
        print(publish(publisher, LAST), flush=True)
        return
    for content in itertools.count(LAST + 1):
        print(f"published {publish(publisher, content)}", flush=True)


if __name__ == "__main__":
    main()
