"""Entries of versions of which one part went back: features of entities without rows, rows without the features."""

from __future__ import annotations

import numpy as np

from freshet_serving.models.publishing.publisher import Publisher
from tests.corpus.entry import column_document
from tests.corpus.story import MODEL, Story, requests_of
from tests.support import entities
from tests.support.packages import make_weights, rows_of

USERS = list(range(6))


def restored(story: Story) -> None:
    """Features go back to the first delta, then the model to the version, then a delta of both follows."""
    entities.write_package(story.repository, model=MODEL)
    # The last of them has no features.
    story.requests += requests_of("users", {"user": column_document("int64", [*USERS, 11], [len(USERS) + 1])})
    story.moment("published")
    _publish(story, 1)
    _publish(story, 2, removed={entities.TABLE: [7]})
    for generation, only in (("1.1", "entities"), ("1.0", "model")):
        Publisher(story.repository, MODEL).restore(generation, only)
        story.moment(f"{only} of {generation} restored")
    _publish(story, 5)


def _publish(story: Story, content: int, **more: object) -> None:
    Publisher(story.repository, MODEL).publish(
        rows={"user": (np.array(USERS), rows_of(USERS, content))},
        dense=make_weights(content),
        entities={"profile": (USERS, entities.columns(USERS, content))},
        **more,
    )
    story.moment(f"delta {content}")
