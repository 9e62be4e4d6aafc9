"""Read and answer requests in the form that rerankers share (Jina, Cohere, vLLM): a dialect (serving.http.dialects).

    {"model": "ctr", "query": {"user_id": 7, "history.item": [3, 5]}, "documents": [9, 2, 5], "top_n": 2}
    {"model": "ctr", "results": [{"index": 2, "relevance_score": 0.9, "document": {"text": "5"}}, ...], ...}

The query is a user: the model's inputs by name, one value each. The documents are item ids. Clients that type both as
text send the query's object as JSON text, and ids as their digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from freshet_serving.processor.columns import Column
from freshet_serving.processor.engine import PredictReply
from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.package import Input, Manifest, expected_lists
from freshet_serving.serving.codecs.json_columns import column, has_booleans
from freshet_serving.serving.codecs.wire import (
    JSON_TYPE,
    Body,
    Headers,
    dump_json,
    header_timeout_s,
    json_number,
    load_json,
    show,
)
from freshet_serving.serving.front.shared_memory import Regions
from freshet_serving.serving.http.asgi import RawHeaders
from freshet_serving.serving.request_headers import TOP_ITEMS

ITEM = "item"
MAX_DIGITS = 20
MAX_MODEL_LETTERS = 256


class RerankOptions(NamedTuple):
    """Options of a request to rerank.

    Attributes:
        output: The output with the scores.
        documents: As sent; `returned` says whether results repeat them.
        top_n: Most results.
    """

    output: str
    documents: Sequence[Any]
    top_n: int
    returned: bool
    timeout_s: float | None


def model_of(body: Body, limits: RequestLimits) -> str:
    """Return the name of the model that a body asks for; raise BadInput if it names none."""
    name = load_json(body, limits).get("model")
    if type(name) is not str or not 0 < len(name) <= MAX_MODEL_LETTERS:
        raise BadInput(f"model: expected the name of a model, got {json_kind(name)}")
    return name


def decode(
    body: Body, headers: Headers, manifest: Manifest, limits: RequestLimits, regions: Regions | None
) -> tuple[Mapping[str, Column], RerankOptions]:
    """Return the inputs of a body and its options; arguments and errors as Dialect.decode."""
    if TOP_ITEMS in headers:
        raise BadInput("x-top-items: expected none, got one; a request to rerank names its documents, and top_n")
    document = load_json(body, limits)
    query, documents = _query(document.get("query"), manifest), document.get("documents")
    if type(documents) is not list or not documents:
        got = "an empty array" if documents == [] else json_kind(documents)
        raise BadInput(f"documents: expected an array of item ids, got {got}")
    item = _item_input(manifest, query)
    options = RerankOptions(
        _scores_of(manifest),
        documents,
        _top_n(document.get("top_n"), len(documents)),
        _returned(document.get("return_documents", True)),
        header_timeout_s(headers),
    )
    sent = {**{name: [value] for name, value in query.items()}, item.name: [_id(item, each) for each in documents]}
    plain, extent = not has_booleans(body), RequestSize(limits)
    inputs = {}
    for spec in manifest.expected_inputs(sent):
        if spec.name not in sent:
            raise BadInput(f"query: lacks {spec.name!r}{expected_lists(spec.name, manifest.sequences)}")
        try:
            inputs[spec.name] = column(spec, sent[spec.name], plain, extent)
        except BadInput as error:
            raise BadInput(f"{'documents' if spec is item else 'query'}: {error}") from None
    return inputs, options


def encode(reply: PredictReply, options: RerankOptions, regions: Regions | None) -> tuple[bytes, RawHeaders]:
    """Return the body and headers of a reply; arguments as Dialect.encode.

    Among equal scores the document that was sent first comes first. Documents that the model drops have no result.
    """
    scores = reply.outputs[options.output].reshape(-1)
    dropped = frozenset(reply.dropped_rows)
    rows = [row for row in range(len(options.documents)) if row not in dropped]
    results: list[dict[str, Any]] = []
    for at in np.argsort(-scores, kind="stable")[: options.top_n].tolist():
        result: dict[str, Any] = {"index": rows[at], "relevance_score": json_number(scores[at])}
        if options.returned:
            sent = options.documents[rows[at]]
            result["document"] = sent if type(sent) is dict else {"text": str(sent)}
        results.append(result)
    answer = {"model": reply.model, "results": results, "usage": {"total_tokens": 0}}
    return dump_json(answer), (JSON_TYPE,)


def _query(query: Any, manifest: Manifest) -> dict[str, Any]:
    if type(query) is str and query.lstrip().startswith("{"):
        try:
            query = orjson.loads(query)
        except orjson.JSONDecodeError as error:
            raise BadInput(f"query: expected an object, or its JSON text, got text that is none: {error.msg}") from None
    if type(query) is not dict:
        names = ", ".join(repr(i.name) for i in manifest.read_inputs[:8])
        raise BadInput(
            f"query: expected an object of the user's inputs (the model reads {names}), got {json_kind(query)}"
        )
    by_name = dict(manifest.by_input(query))
    inputs = {i.name for i in manifest.inputs}
    unknown = next((name for name in by_name if name not in inputs), None)
    if unknown is not None:
        names = ", ".join(sorted(inputs)[:16])
        raise BadInput(f"query: expected inputs of the model, got {show(unknown)}; it has {names}")
    return by_name


def _item_input(manifest: Manifest, query: Mapping[str, Any]) -> Input:
    """Return the input that the documents are ids of: the item's, which the query leaves out; raises BadInput."""
    ids = [i for i in manifest.inputs if i.name not in query and not i.ragged and not i.columns]
    of_items = manifest.origins(f.input for f in manifest.features if f.side == ITEM)
    keys = {e.key for e in manifest.entities if of_items.intersection([e.key, *e.inputs])}
    filled = manifest.fillers
    for named in (
        [i for i in ids if i.name in keys],
        [i for i in ids if i.name in of_items and i.name not in filled],
        [i for i in ids if i.name not in filled],
    ):
        if len(named) == 1 and named[0].dtype in ("int64", "string"):
            return named[0]
        if named:
            names = ", ".join(repr(i.name) for i in named[:8])
            raise BadInput(
                f"documents: expected a model whose items have one id, got one that reads {names} beside the query; "
                "send those of the user in the query, and other models their candidates with :predict"
            )
    raise BadInput("documents: expected a query without the items' ids, got one that names every input")


def _scores_of(manifest: Manifest) -> str:
    """Return the output that orders items: the model's only one, or `score`."""
    outputs = [o for o in manifest.outputs if o.columns == 1 and o.dtype != "string"]
    names = {o.name for o in outputs}
    if len(manifest.outputs) == 1 == len(outputs):
        return outputs[0].name
    if "score" in names:
        return "score"
    raise BadInput(
        "model: expected one with one output of one number, or one named 'score', got "
        f"{', '.join(repr(o.name) for o in manifest.outputs[:8])}"
    )


def _id(item: Input, document: Any) -> Any:
    if type(document) is dict:
        document = document.get("id", document.get("text"))
    if type(document) is list:
        raise BadInput(f"documents: expected ids of {item.name!r}, got a list")
    if item.dtype == "string":
        return str(document) if type(document) is int else document
    if type(document) is str:
        digits = document[1:] if document.startswith("-") else document
        if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS:
            return int(document)
        raise BadInput(f"documents: expected ids of {item.name!r}, whole numbers, got {show(document)}")
    return document


def _top_n(top_n: Any, documents: int) -> int:
    if top_n is None:
        return documents
    if type(top_n) is not int or top_n < 1:
        raise BadInput(f"top_n: expected a whole number from 1 on, got {show(str(top_n))}")
    return min(top_n, documents)


def _returned(returned: Any) -> bool:
    if type(returned) is not bool:
        raise BadInput(f"return_documents: expected true or false, got {json_kind(returned)}")
    return returned
