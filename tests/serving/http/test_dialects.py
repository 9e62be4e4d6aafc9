"""The table of dialects: whatever stands in it is routed, served below ASGI and described."""

import pytest

from serving.http.dialects import DIALECTS
from serving.http.openapi import OPERATIONS
from serving.http.paths import Route, parse
from serving.http.protocol import PREDICT_SUFFIXES


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_dialect_of_the_table_has_its_paths(dialect):
    model = "/v1/models/m" if dialect.servable else "/v2/models/m"
    for where, route in (("", Route(dialect.name, "m")), ("/versions/3", Route(dialect.name, "m", 3))):
        path = model + where + dialect.suffix
        assert parse(path.encode()) == route
        assert path.encode().endswith(PREDICT_SUFFIXES)
        assert route.method == "POST"
    operation = OPERATIONS[model.removesuffix("m") + "{model}" + dialect.suffix]
    assert (operation.action, operation.summary) == (dialect.name, dialect.summary)
