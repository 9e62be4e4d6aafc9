"""Replies of best items are known by the outputs themselves."""

from dataclasses import replace

from freshet_serving.processor.package import RANKED_OUTPUTS, ranks_items
from tests.support.ranked import manifest


def test_equal_outputs_of_a_model_are_no_ranking():
    made = manifest()
    assert ranks_items(replace(made, outputs=RANKED_OUTPUTS["uint64"]))
    assert not ranks_items(replace(made, outputs=[*RANKED_OUTPUTS["uint64"]]))
    assert not ranks_items(made)
