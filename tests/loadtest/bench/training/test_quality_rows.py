"""Ids as peers' embeddings count them, and which epoch is kept."""

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from loadtest.bench.training.quality_rows import EPOCHS, best_epoch, embedding_ids


def test_learned_ids_have_own_rows_and_others_share_one():
    ids, size = embedding_ids(np.array([70, 5, 70, 9, 5]), 3)
    assert ids.tolist() == [[2], [3], [2], [1], [3]]
    assert size == 4
    ids, size = embedding_ids(Strings.of(["b", "a", "c"]), 2)
    assert (ids.tolist(), size) == ([[2], [3], [1]], 4)


def test_short_list_is_padded_with_the_empty_row():
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


def test_first_epoch_with_a_worse_selection_score_is_last():
    assert run_of([0.7, 0.6, 0.8]) == ({"auc": [1.0], "epochs": 1, "choosing": 0.7}, 2)
    assert run_of([0.7, 0.8, 0.9, 1.0]) == ({"auc": [3.0], "epochs": 3, "choosing": 0.9}, EPOCHS)
