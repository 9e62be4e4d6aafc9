import gzip

import numpy as np
import pytest

from freshet_serving.models.data.movielens import FIELDS, MovieLensSource
from freshet_serving.models.data.source import Field
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import check_batches, joined, real_data

USERS = "1::F::1::10::48067\n2::M::56::16::02460-1234\n"
MOVIES = "1::Toy Story (1995)::Animation|Comedy\n7::Les Mis\xe9rables: A Tale (1998) ::Drama\n9::Untitled::\n"
EVENTS = """timestamp,user_id,movie_id,label,rating,ts_exact
10,1,1,1,5,1
11,2,7,0,0,0
11,1,9,1,4,1
12,2,1,0,2,1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "users.dat").write_text(USERS)
    (tmp_path / "movies.dat").write_text(MOVIES, encoding="latin-1")
    (tmp_path / "events.csv").write_text(EVENTS)
    return tmp_path


def test_events_are_joined_with_users_and_movies(folder):
    source = MovieLensSource(str(folder))

    assert joined(list(source.batches(3))) == {
        "user_id": [1, 2, 1, 2],
        "movie_id": [1, 7, 9, 1],
        "gender": [b"F", b"M", b"F", b"M"],
        "age": [1, 56, 1, 56],
        "occupation": [10, 16, 10, 16],
        "zip": [b"48067", b"02460-1234", b"48067", b"02460-1234"],
        "genres": [[b"Animation", b"Comedy"], [b"Drama"], [], [b"Animation", b"Comedy"]],
        "year": [1995, 1998, 0, 1995],
        "label": [1.0, 0.0, 1.0, 0.0],
        "time": [10.0, 11.0, 11.0, 12.0],
    }
    assert source.count_rows() == 4


def test_packed_events_precede_plain_ones(folder):
    (folder / "events.csv.gz").write_bytes(gzip.compress(EVENTS.replace("10,1,1,1,5", "10,1,1,0,3").encode()))
    (batch,) = MovieLensSource(str(folder)).batches(9)

    assert batch.label[0] == 0


def test_original_ratings_are_sorted_by_time_and_labelled(folder):
    (folder / "events.csv").unlink()
    (folder / "ratings.dat").write_text("1::1::5::30\n1::7::3::20\n2::9::4::20\n2::1::1::10\n")
    (batch,) = MovieLensSource(str(folder)).batches(9)

    assert batch.columns["user_id"].tolist() == [2, 1, 2, 1]
    assert batch.columns["movie_id"].tolist() == [1, 7, 9, 1]
    assert batch.label.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert batch.time.tolist() == [10.0, 20.0, 20.0, 30.0]


def test_rating_gives_the_label_without_a_label_column(folder):
    (folder / "events.csv").write_text("timestamp,user_id,movie_id,rating\n1,1,1,4.5\n2,1,7,3.5\n")
    (batch,) = MovieLensSource(str(folder)).batches(9)

    assert batch.label.tolist() == [1.0, 0.0]


def test_star_threshold_gives_the_requested_labels(folder):
    (batch,) = MovieLensSource(str(folder), (), ("rated4", "rated5")).batches(9)
    assert batch.label.tolist() == [[1, 1], [0, 0], [1, 0], [0, 0]]
    assert batch.label.dtype == np.float32
    (batch,) = MovieLensSource(str(folder), (), ("rated5",)).batches(9)
    assert batch.label.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("labels", [(), ("rated4", "rated5")])
def test_ratings_are_read_where_a_history_asks_for_them(folder, labels):
    (folder / "events.csv").write_text(EVENTS + "5,2,9,1,3,1\n")
    source = MovieLensSource(str(folder), [Field("movie_id", "id"), Field("rating", "float")], labels)
    rows = joined(list(source.batches(2)))
    assert rows["rating"] == [3.0, 5.0, 0.0, 4.0, 2.0]
    assert rows["movie_id"] == [9, 1, 7, 9, 1]
    assert rows["label"] == ([[0, 0], [1, 1], [0, 0], [1, 0], [0, 0]] if labels else [1, 1, 0, 1, 0])


def test_resumed_reader_yields_the_remaining_batches(folder):
    for rows in (1, 2, 3, 4, 5):
        check_batches(MovieLensSource(str(folder)), rows, 4)


def test_side_files_are_needed_only_for_their_own_columns(folder):
    (folder / "users.dat").unlink()
    wanted = [Field("year", "id"), Field("user_id", "id")]
    (batch,) = MovieLensSource(str(folder), wanted).batches(9)

    assert list(batch.columns) == ["year", "user_id"]
    with pytest.raises(BadInput, match=r"users\.dat: expected next to the events, cannot be read: No such file"):
        MovieLensSource(str(folder), [Field("zip", "string")])


def test_unknown_users_and_movies_have_empty_features(folder):
    (folder / "events.csv").write_text("timestamp,user_id,movie_id,label\n1,0,8,1\n2,99,99,0\n3,2,7,0\n")
    rows = joined(list(MovieLensSource(str(folder)).batches(9)))

    assert rows["gender"] == [b"", b"", b"M"]
    assert rows["age"] == [0, 0, 56]
    assert rows["genres"] == [[], [], [b"Drama"]]
    assert rows["year"] == [0, 0, 1998]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("users.dat", "1::F::1::10\n", r"users\.dat: expected fields between '::', got '1::F::1::10' at row 0"),
        ("users.dat", "", r"users\.dat: expected rows, got an empty file"),
        ("movies.dat", "x::Toy Story (1995)::Comedy\n", r"movies\.dat: expected fields between '::'"),
        ("events.csv", "", r"events\.csv: expected rows, got an empty file"),
        ("events.csv", "timestamp,user_id,movie_id,label\n", r"events\.csv: expected rows, got an empty file"),
        ("ratings.dat", "1::1::5::30\n1::7::3\n", r"ratings\.dat: expected 4 columns, got 3 at row 1"),
        (
            "events.csv",
            "timestamp,user_id,label\n1,2,1\n",
            r"column 'movie_id': expected exactly one in events\.csv, got 0",
        ),
        (
            "events.csv",
            "timestamp,user_id,movie_id\n1,2,1\n",
            r"column 'rating': expected exactly one in events\.csv, got 0",
        ),
        (
            "events.csv",
            "timestamp,user_id,movie_id,label\n1,,1,1\n",
            r"column 'user_id': expected an id, got a null at row 0",
        ),
        (
            "events.csv",
            "timestamp,user_id,movie_id,rating\n1,1,1,\n",
            r"column 'rating': expected a rating, got a null at row 0",
        ),
    ],
)
def test_malformed_files_are_refused_in_one_line(folder, name, text, message):
    if name == "ratings.dat":
        (folder / "events.csv").unlink()
    (folder / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        MovieLensSource(str(folder))


def test_folder_without_events_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"data\.path: expected a folder with one of events\.csv\.gz, events\.csv, ratings\.dat"
    ):
        MovieLensSource(str(tmp_path))


def test_real_stream_is_in_time_order_with_its_positive_rate():
    source = MovieLensSource(real_data("ml-1m"))
    batches = list(source.batches(1 << 18))
    time = np.concatenate([b.time for b in batches])

    assert source.count_rows() == len(time) == 1_000_093
    assert (np.diff(time) >= 0).all()
    assert np.concatenate([b.label for b in batches]).mean() == pytest.approx(0.575, abs=0.001)
    assert source.schema.fields == FIELDS
    assert all((b.columns["year"] > 1900).all() and (b.columns["age"] > 0).all() for b in batches)
    assert all(np.diff(b.columns["genres"].row_splits).min() >= 1 for b in batches)
