"""Define JSON schemas of the data port's requests and replies."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
BINARY: Schema = {"type": "string", "format": "binary"}
ANY_OBJECT: Schema = {"type": "object"}


def object_of(required: str, /, **properties: Schema) -> Schema:
    """Return the schema of an object; `required` names properties, separated by spaces."""
    return {"type": "object", "properties": properties, "required": required.split()}


def list_of(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def json_of(schema: Schema) -> dict[str, Schema]:
    return {"application/json": schema}


def named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TENSOR = object_of(
    "name shape datatype",
    name=TEXT,
    shape=list_of(NUMBER),
    datatype={"type": "string", "enum": ["INT64", "FP32", "FP16", "BF16", "BYTES"]},
    parameters=ANY_OBJECT,
    data={"type": "array", "items": {}},
)
FLAG: Schema = {"type": "boolean"}
INFER_PARAMETERS = object_of(
    "",
    timeout={"type": "integer", "description": "Deadline in microseconds."},
    binary_data_output=FLAG,
    sequence_id={"type": ["integer", "string"], "description": "A user whose inputs the server keeps."},
    sequence_start={**FLAG, "description": "Keep what is sent of the user in place of what is kept."},
    sequence_end={**FLAG, "description": "Forget the user after the answer."},
    sequence_replace={**FLAG, "description": "Put the events in the place of those of the same times."},
    sequence_remove={**FLAG, "description": "Take the events back."},
    sequence_version={"type": "integer", "description": "The version that the user must have."},
)
SCHEMAS: dict[str, Schema] = {
    "Error": object_of("error", error=TEXT),
    "Ready": object_of("ready", ready={"type": "boolean"}, reasons=list_of(TEXT)),
    "Root": object_of(
        "name version what ready where",
        name=TEXT,
        version=TEXT,
        what=TEXT,
        ready={"type": "boolean"},
        where={"type": "object", "additionalProperties": TEXT},
    ),
    "Tensor": TENSOR,
    "InferRequest": object_of(
        "inputs", id=TEXT, parameters=INFER_PARAMETERS, inputs=list_of(named("Tensor")), outputs=list_of(ANY_OBJECT)
    ),
    "InferReply": object_of(
        "model_name model_version outputs",
        id=TEXT,
        model_name=TEXT,
        model_version=TEXT,
        outputs=list_of(named("Tensor")),
    ),
    "PredictRequest": {
        "description": "Rows (`instances`), or one array for each input (`inputs`).",
        "type": "object",
        "properties": {"signature_name": TEXT, "instances": {"type": "array", "items": {}}, "inputs": {}},
    },
    "PredictReply": {"type": "object", "properties": {"predictions": {"type": "array", "items": {}}, "outputs": {}}},
    "ExamplesRequest": object_of("examples", signature_name=TEXT, context=ANY_OBJECT, examples=list_of(ANY_OBJECT)),
    "ResultsReply": object_of("results", results={"type": "array", "items": {}}),
    "RerankRequest": object_of(
        "query documents",
        model=TEXT,
        query={"description": "The user's inputs by name, or their JSON text.", "type": ["object", "string"]},
        documents=list_of({"description": "An item's id."}),
        top_n=NUMBER,
        return_documents={"type": "boolean"},
    ),
    "RerankReply": object_of(
        "model results",
        model=TEXT,
        results=list_of(
            object_of("index relevance_score", index=NUMBER, relevance_score={"type": "number"}, document=ANY_OBJECT)
        ),
        usage=ANY_OBJECT,
    ),
    "Server": object_of("name version extensions", name=TEXT, version=TEXT, extensions=list_of(TEXT)),
    "Model": object_of(
        "name versions platform inputs outputs",
        name=TEXT,
        versions=list_of(TEXT),
        platform=TEXT,
        inputs=list_of(named("Tensor")),
        outputs=list_of(named("Tensor")),
    ),
    "Status": object_of("model_version_status", model_version_status=list_of(ANY_OBJECT)),
    "Metadata": object_of("model_spec metadata", model_spec=ANY_OBJECT, metadata=ANY_OBJECT),
    "Statistics": object_of("model_stats", model_stats=list_of(ANY_OBJECT)),
    "Index": list_of(object_of("name version state", name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "Regions": list_of(object_of("name key offset byte_size", name=TEXT, key=TEXT, offset=NUMBER, byte_size=NUMBER)),
}
