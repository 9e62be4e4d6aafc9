"""Every JSON value in place of every value of a document."""

import copy

VALUES = (
    None, True, False, 0, -1, 7, 1.5, float("nan"), float("inf"), 2**63 - 1, 2**63, -(2**63) - 1, 10**400, "", "a",
    "1.0", "\x00", "é" * 300, [], {}, [[]], [None], [None, None], [{}], [[None]], [[[]]], [1, "a"], [True],
    [[1], [2, 3]], {"b64": "YQ=="}, {"b64": "?"}, {"b64": 5}, {"": None}, [[[[[[[[1]]]]]]]],
)  # fmt: skip


def places(document, path=()):
    """The path of every value in a document, its own included."""
    yield path
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield from places(value, (*path, key))


def put(document, path, value):
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def without(document, path):
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def variants(document):
    """All documents with one value replaced, or left out."""
    for path in places(document):
        for value in VALUES:
            yield put(document, path, value)
        if path:
            yield without(document, path)
