"""The route that erases a user: from all processes of this server, and from the trainer's folder where it has one.

It reaches what has named itself a keeper (processor.versions.erasure), and the folder of a trainer in the repository,
and says what it does not reach: a person has to know where to go on. The key is in no log line, no entry of the audit
trail and no error.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import Field

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import Erasures
from freshet_serving.processor.versions.erasure import (
    KEY,
    Erased,
    ErasedUser,
    bound_keys,
    checked_key,
    possible_inputs,
    user_inputs,
)
from freshet_serving.serving.codecs.validation import StrictModel
from freshet_serving.serving.codecs.wire import show
from freshet_serving.serving.extensions.admin.admin_bodies import Name, documented, json_reply, read_json
from freshet_serving.serving.extensions.admin.audit_trail import AuditTrail
from freshet_serving.serving.lifecycle import Availability

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

NOT_REACHED = (
    "other servers of the repository: ask each of them",
    "online stores themselves, the logs that models learn from, and files that others have read, copied or backed up",
    "rows of embedding tables and of entities: publish a delta that removes them",
    "requests that a version stores for warm-up",
)
NO_TRAINER = (
    "a trainer's histories: its checkpoints are not in this repository; run `freshet erase MODEL KEY --repository DIR`"
    " on its machine, with DIR the repository or publish.trainer_folder"
)
NO_COLUMN = "recordings: they have no column with the key, as the model does not read it"
ASKED = "asked"
MOST_NAME = 256


class EraseRequest(StrictModel):
    # Checked here: an error of the model would repeat the key.
    key: Any = Field(
        description=f"The user's key: {KEY}.", json_schema_extra={"anyOf": [{"type": "string"}, {"type": "integer"}]}
    )
    input: str = Field(
        "", max_length=MOST_NAME, description="The input with users' keys, for a model with several that may hold them."
    )


class EraseRoute:
    """The route; `bulk` runs erasures, which may rewrite files: None for the threads of all other operations."""

    def __init__(
        self, lifecycle: Availability[ModelHost], trail: AuditTrail, bulk: Executor | None, records: bool
    ) -> None:
        self._lifecycle, self._trail, self._bulk, self._records = lifecycle, trail, bulk, records

    def add_to(self, app: FastAPI) -> None:
        app.post("/admin/models/{name}/erase", openapi_extra=documented(EraseRequest))(self.erase)

    async def erase(self, name: Name, request: Request) -> Response:
        """Erase a user from what this server keeps, and say what it does not reach."""
        processor = self._lifecycle.processor()
        body = await read_json(request, EraseRequest)
        key = checked_key(body.key, "body.key")
        model = processor.model(name)
        manifest = model.pick(None).manifest
        names = (_checked_input(manifest, body.input),) if body.input else _inputs(manifest)
        manifests = [version.manifest for version in model.routes.served.values()]
        user = ErasedUser(name, names, key, bound_keys(key, names, manifests))
        unread = set(names).isdisjoint(i.name for i in manifest.read_inputs)

        def act() -> tuple[bool, Erased]:
            # The trainer first: what it writes to a store afterwards does not have the user.
            return _ask_trainer(processor, name, key), processor.erase(user)

        asked, erased = await self._trail.run(request, f"erase a user of {name!r}", act, self._bulk)
        not_reached = [*erased.failed, *(() if asked else (NO_TRAINER,)), *NOT_REACHED]
        if self._records and unread:
            not_reached.insert(0, NO_COLUMN)
        return json_reply(
            {
                "model": name,
                "inputs": names,
                "erased": dict(sorted(erased.counts.items())),
                "trainer": ASKED if asked else "",
                "not_reached": not_reached,
            }
        )


def _inputs(manifest: Manifest) -> tuple[str, ...]:
    """Return the input with users' keys, or nothing for a model without; raise BadInput if there are several."""
    names = user_inputs(manifest)
    if len(names) > 1:
        listed = ", ".join(map(repr, names[:8]))
        raise BadInput(f"body.input: expected the name of the input with users' keys, one of {listed}, got nothing")
    return names


def _checked_input(manifest: Manifest, name: str) -> str:
    usable = possible_inputs(manifest)
    if name not in usable:
        listed = ", ".join(map(repr, usable[:8])) or "none, as the model has no such input"
        raise BadInput(f"body.input: expected an input of int64 or strings, one a row: {listed}; got {show(name)}")
    return name


def _ask_trainer(processor: ModelHost, name: str, key: str) -> bool:
    """Ask the trainer whose folder the repository is to forget a user; return False if there is none, or no access."""
    try:
        Erasures.of_model(processor.repository.root, name).ask(key)
    except (BadInput, OSError):
        return False
    return True
