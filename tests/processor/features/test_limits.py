"""What a request may cost: added up by shapes, refused by name."""

import pytest

from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import DEFAULTS, ROWS_AT_ONCE, RequestLimits, RequestSize
from freshet_serving.processor.options import check, options_of
from freshet_serving.processor.package.manifest_entries import Input

IDS, FLOATS, TAGS = Input("ids", "int64", 2), Input("floats", "float32", 2), Input("tags", "string", ragged=True)
SMALL = RequestLimits(max_rows=1000, max_ids=100)


def test_request_within_the_limits_is_accepted():
    extent = RequestSize(SMALL)
    extent.add(FLOATS, 1000, 2000)
    extent.add(IDS, 20, 40)
    extent.add(TAGS, 20, 60)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [(FLOATS, 1001, 0)],
            "max_rows: expected at most 1000 rows per request, got 1001 in floats; ask for fewer at once",
        ),
        ([(IDS, 51, 102)], "max_ids: expected at most 100 ids and strings per request, got 102; ask for fewer at once"),
        ([(TAGS, 3, 101)], "max_ids: .* got 101;"),
        ([(TAGS, 1, 101)], "max_ids: .* got 101;"),
        ([(TAGS, 700, 101)], "max_ids: .* got 101;"),
        ([(IDS, 30, 60), (TAGS, 30, 41)], "max_ids: .* got 101;"),
        (
            [(IDS, 1, 40), (FLOATS, 700, 1400)],
            "max_ids: .* got 40, 40 of them in one row for 700 rows, counted 3 times;",
        ),
        ([(FLOATS, 700, 1400), (TAGS, 1, 40)], "max_ids: .* counted 3 times"),
        ([(TAGS, 0, 101)], "max_ids: .* got 101;"),
    ],
)
def test_error_names_the_exceeded_limit(inputs, message):
    extent, (*others, last) = RequestSize(SMALL), inputs
    for other in others:
        extent.add(*other)
    with pytest.raises(TooLarge, match=message):
        extent.add(*last)


def test_broadcast_ids_count_again_for_every_full_row_block():
    limits = RequestLimits(max_ids=10)
    for rows, ids in ((ROWS_AT_ONCE, 10), (2 * ROWS_AT_ONCE, 5)):
        RequestSize(limits).add(IDS, 1, ids)
        extent = RequestSize(limits)
        extent.add(IDS, 1, ids)
        extent.add(FLOATS, rows, rows)
        with pytest.raises(TooLarge):
            extent.add(FLOATS, rows + 1, rows + 1)


def test_row_limit_is_checked_before_anything_else_is_known():
    with pytest.raises(TooLarge, match="got 1001 in 'instances'"):
        RequestSize(SMALL).add_rows(1001, "'instances'")


def test_repeated_values_are_counted_over_all_inputs():
    size = RequestSize(RequestLimits(max_body_bytes=100))
    size.repeat("city", 10, 9)
    size.repeat("user", 1, 10)
    with pytest.raises(TooLarge, match="at most 100 bytes of repeated values, got 101 with user; send them once"):
        size.repeat("user", 1, 1)


def test_model_may_override_the_limits():
    own = SMALL.over({"max_rows": 5})
    assert (own.max_rows, own.max_ids) == (5, 100)
    assert SMALL.over({}) == SMALL


def test_every_limit_but_those_of_json_and_inflation_is_an_option():
    assert list(vars(DEFAULTS)) == [
        *(field.name for field, _ in options_of(RequestLimits)), "max_inflation", "max_json_bytes", "max_nodes"
    ]  # fmt: skip
    check(DEFAULTS)


def test_help_shows_first_what_most_servers_set():
    shown = {field.name for field, option in options_of(RequestLimits) if not option.folded}
    assert shown == {"max_rows", "max_body_bytes"}


@pytest.mark.parametrize(
    ("name", "default", "most"),
    [
        ("max_rows", 65_536, 1 << 31),
        ("max_ids", 4_000_000, 1 << 31),
        ("max_cells", 1 << 29, 1 << 40),
        ("max_body_bytes", 64 << 20, 1 << 32),
    ],
)
def test_limit_takes_one_to_its_most_and_has_its_default(name, default, most):
    assert getattr(DEFAULTS, name) == default
    for value in (1, most):
        check(RequestLimits(**{name: value}))
    for value in (0, most + 1):
        with pytest.raises(BadInput, match=f"{name}: expected 1 to"):
            check(RequestLimits(**{name: value}))
