"""JSON bodies of the admin port as models: strict, and refused with the field and what was wanted of it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from processor.errors import BadInput


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Validated = TypeVar("Validated", bound=BaseModel)


def validated(document: Any, model: type[Validated], where: str = "body") -> Validated:
    """A JSON document as a model; raises BadInput. where: what the document is called."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise BadInput(first_problem(error.errors(), where)) from None


def first_problem(errors: Any, root: str = "") -> str:
    """One line out of pydantic's list: the field and what was wanted of it."""
    first = errors[0]
    where = ".".join(str(part) for part in (root, *first["loc"]) if part != "")
    return f"{where[:80]}: {first['msg']}"
