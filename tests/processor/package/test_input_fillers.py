"""Who fills which input, and which a request has to have."""

from freshet_serving.processor.package.input_fillers import UNREAD, InputFiller, input_fillers, missing_input
from freshet_serving.processor.package.sequences import SequenceEntry

BY_USER = InputFiller("looked-up values", "user", ("user_id", "shop"))


def test_keys_that_the_model_does_not_read_may_be_absent():
    fillers = input_fillers({"age": BY_USER}, (), {"age", "shop"})
    assert fillers == {"age": BY_USER, "user_id": InputFiller(UNREAD, "", ())}


def test_missing_input_is_told_by_what_could_fill_it():
    error = missing_input("age", {"age": BY_USER}, {"shop"})
    assert str(error) == "input 'age' is missing: expected it, or 'user_id', by which looked-up values 'user' fill it"
    assert str(missing_input("sex", {"age": BY_USER}, ())) == "input 'sex' is missing"


def test_missing_list_of_a_sequence_is_told_by_what_to_send():
    history = SequenceEntry("h", [], 4, 0, ["h.item", "h.time"], time_unit="ms")
    assert str(missing_input("h.time", {}, (), [history])) == (
        "input 'h.time' is missing: expected the times of a user's events in milliseconds since 1970, oldest first, as"
        " one list for all rows or one a row, as long as those of 'h.item'; [] without events"
    )
    assert "expected values of a user's events, oldest" in str(missing_input("h.item", {}, (), [history]))
