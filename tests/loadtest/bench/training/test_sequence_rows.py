"""Histories as the peer of the sequence race reads them."""

import numpy as np

from loadtest.bench.training.sequence_rows import EPOCHS, LENGTH, SequenceRows, best_epoch, embedding_codes
from tests.models.data.sources import real_data


def test_peer_reads_the_history_that_freshet_reads():
    rows = SequenceRows(real_data("ml-1m"), 1000)
    arrays, sizes = rows.coded()
    learned = arrays["learned.movie_id"]
    assert len(learned) == 800
    assert sizes["movie_id"] == len(np.unique(learned)) + 2
    history = rows.whole.columns["history.movie"]
    movies = rows.whole.columns["movie_id"]
    code = dict(zip(movies[:800].tolist(), learned.tolist()))
    for row in (0, 300, 799):
        events = history.values[history.row_splits[row] : history.row_splits[row + 1]].tolist()
        wanted = [code.get(movie, 1) for movie in events]
        assert arrays["learned.history"][row].tolist() == wanted + [0] * (LENGTH - len(wanted))


def test_learned_ids_have_own_rows_and_others_share_one():
    ids, code, at = embedding_codes(np.array([70, 5, 70, 9, 5]), 3)
    assert ids.tolist() == [5, 9, 70]
    assert code[at].tolist() == [3, 2, 3, 1, 2]


def run_of(choosing):
    """best_epoch of a side whose epochs give these AUCs on the choosing rows; and how many epochs it learned."""
    learned = []

    def auc(part):
        return choosing[len(learned) - 1] if part == "choosing" else float(len(learned))

    return best_epoch(lambda: learned.append(1), auc, EPOCHS), len(learned)


def test_first_epoch_with_a_worse_selection_score_is_last():
    assert run_of([0.7, 0.6, 0.8]) == ({"auc": 1.0, "epochs": 1, "choosing": 0.7}, 2)
    assert run_of([0.7, 0.8, 0.9, 1.0]) == ({"auc": 3.0, "epochs": 3, "choosing": 0.9}, EPOCHS)
