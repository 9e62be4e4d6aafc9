"""What a join is told, checked before anything is opened."""

import pytest

from freshet_serving.models.streams.join_settings import JoinSettings
from freshet_serving.processor.errors import BadInput
from tests.models.streams.recordings import Place, put, recorded_as, recording


def test_time_options_have_bounds():
    with pytest.raises(BadInput, match="--wait"):
        JoinSettings("r", "o", "out", wait_s=0)
    with pytest.raises(BadInput, match="--lag"):
        JoinSettings("r", "o", "out", lag_s=float("nan"))
    with pytest.raises(BadInput, match=r"--late: expected 0, or more than --wait \(600\), got 600"):
        JoinSettings("r", "o", "out", late_s=600)
    assert JoinSettings("r", "o", "out", late_s=0).late_s == 0


def test_outcomes_are_a_folder_or_stream_with_hidden_passwords():
    assert JoinSettings("r", "clicks", "out").format == "parquet"
    secret = JoinSettings("r", "redis://me:secret@host/clicks", "out")
    assert secret.format == "redis"
    assert "secret" not in repr(secret)
    with pytest.raises(BadInput, match="--outcomes: expected a folder or a URL with scheme"):
        _ = JoinSettings("r", "https://host/clicks", "out").format


def test_item_kind_is_that_of_the_recordings(tmp_path):
    place = Place(tmp_path)
    put(place.recordings, recorded_as(1), recording([("r", 0, 0, 0.5)]))
    mine, theirs = place.settings(key="item", request="id", value="v").schemas()
    assert [(f.name, f.kind) for f in mine.fields] == [("freshet.request", "string"), ("item", "id")]
    assert [(f.name, f.kind) for f in theirs.fields] == [("id", "string"), ("item", "id")]
    assert (theirs.label, theirs.time) == ("v", "time")
    with pytest.raises(BadInput, match="--key: expected row, or a column"):
        place.settings(key="nothing").schemas()
    with pytest.raises(BadInput, match="--key: expected a column of single ids or strings"):
        place.settings(key="tags").schemas()
