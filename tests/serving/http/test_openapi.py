import json

import pytest

from freshet_serving.serving.http.dialects import DIALECTS
from freshet_serving.serving.http.openapi import CONTROL, OPERATIONS, document
from freshet_serving.serving.http.paths import OF_MODELS, PLAIN, POSTED, parse
from freshet_serving.serving.http.schemas import SCHEMAS

NAMES = {"model": "m", "version": "3", "label": "stable", "region": "r"}
DOCUMENT = json.loads(document("0.1.0"))


@pytest.mark.parametrize("path", OPERATIONS)
def test_every_path_is_a_route_with_that_action_and_method(path):
    route = parse(path.format(**NAMES).encode())
    assert route.action == OPERATIONS[path].action
    assert set(DOCUMENT["paths"][path]) == {route.method.lower()}


def test_every_action_has_a_path():
    described = {operation.action for operation in OPERATIONS.values()}
    assert described >= {*PLAIN.values(), *OF_MODELS.values(), *POSTED, *DIALECTS}
    assert described >= {"status", "metadata", "model"}


def test_path_names_are_parameters_and_references_are_defined():
    for path, methods in DOCUMENT["paths"].items():
        for told in methods.values():
            names = {p["name"] for p in told["parameters"] if p["in"] == "path"}
            assert names == {n for n in NAMES if "{" + n + "}" in path}
    text = json.dumps(DOCUMENT)
    for piece in text.split('"#/components/schemas/')[1:]:
        assert piece.partition('"')[0] in SCHEMAS


def test_every_operation_has_a_unique_name():
    names = [told["operationId"] for methods in DOCUMENT["paths"].values() for told in methods.values()]
    assert len(names) == len(set(names))


def test_only_model_control_operations_document_403():
    forbidden = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for told in methods.values()
        if told["responses"].get("403", {}).get("description") == CONTROL["403"]
    }
    assert forbidden == {f"/v2/repository/models/{{model}}/{word}" for word in ("load", "unload")}


def test_every_operation_except_health_documents_its_key():
    told = json.loads(document("9"))
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    operations = {path: operation for path, item in told["paths"].items() for operation in item.values()}
    keyless = {path for path, operation in operations.items() if "security" not in operation}
    assert keyless == {"/healthz", "/v2/health/live", "/v2/health/ready"}
    assert "scope metrics" in operations["/metrics"]["responses"]["403"]["description"]
