"""Ids as peers' embeddings count them, and which epoch is kept."""

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from loadtest.bench.training.quality_rows import EPOCHS, best_epoch, embedding_ids


def test_ids_of_the_learned_rows_have_a_row_each_and_all_others_share_one():
    ids, size = embedding_ids(np.array([70, 5, 70, 9, 5]), 3)
    assert ids.tolist() == [[2], [3], [2], [1], [3]]
    assert size == 4
    ids, size = embedding_ids(Strings.of(["b", "a", "c"]), 2)
    assert (ids.tolist(), size) == ([[2], [3], [1]], 4)


def test_a_list_is_filled_up_with_the_row_of_no_value():
    genres = Ragged(Strings.of(["Drama", "War", "Drama", "Noir"]), np.array([0, 2, 2, 3, 4]))
    ids, size = embedding_ids(genres, 3)
    assert ids.tolist() == [[2, 3], [0, 0], [2, 0], [1, 0]]
    assert size == 4


def run_of(choosing):
    """best_epoch of a side whose epochs give these AUCs on the choosing rows; and how many epochs it learned."""
    learned = []

    def aucs(part):
        return [choosing[len(learned) - 1]] if part == "choosing" else [float(len(learned))]

    return best_epoch(lambda: learned.append(1), aucs, EPOCHS), len(learned)


def test_an_epoch_that_the_choosing_rows_like_less_is_the_last():
    assert run_of([0.7, 0.6, 0.8]) == ({"auc": [1.0], "epochs": 1, "choosing": 0.7}, 2)
    assert run_of([0.7, 0.8, 0.9, 1.0]) == ({"auc": [3.0], "epochs": 3, "choosing": 0.9}, EPOCHS)
