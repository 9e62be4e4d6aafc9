"""Histories as the peer of the sequence race reads them."""

import numpy as np

from loadtest.bench.training.sequence_rows import LENGTH, SequenceRows
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
