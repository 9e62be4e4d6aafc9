"""Implement `freshet version` and `freshet rollback`: which full versions are served, and the way back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from freshet_serving.serving.commands.delta_commands import (
    DEFAULT_ADMIN,
    AdminOption,
    GenerationArgument,
    ModelArgument,
    OnlyOption,
    send_rollback,
)

version_app = typer.Typer(help="List, release and reject full versions.", no_args_is_help=True)

RepositoryOption = Annotated[
    str,
    typer.Option(help="Folder of models, or a URL: act on it without a server. Servers follow with their next poll."),
]
ReasonOption = Annotated[str, typer.Option(help="Reason to record; `freshet version list` shows it.")]


@version_app.command("list")
def version_list(model: ModelArgument, repository: RepositoryOption = "", admin: AdminOption = DEFAULT_ADMIN) -> None:
    """Lists full versions, newest first: served, available, held, withdrawn or candidate, with the reason."""
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    if repository:
        from freshet_serving.processor.repository import open_repository
        from freshet_serving.processor.versions.version_actions import describe_versions

        opened = open_repository(repository)
        opened.check_models([model])
        entries: list[dict[str, Any]] = describe_versions(opened, model)
    else:
        entries = AdminClient(admin).get(f"/admin/models/{quoted(model)}/versions")["versions"]
    for entry in entries:
        print(version_line(model, entry))


@version_app.command("release")
def version_release(
    model: ModelArgument,
    version: Annotated[int, typer.Argument(min=1, help="Version number.")],
    reason: ReasonOption = "",
    repository: RepositoryOption = "",
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Releases a version that is held, withdrawn or a candidate: servers choose it again, and no gate judges it."""
    _decide("release", model, version, reason, repository, admin)
    print(f"{model} {version}: released")


@version_app.command("reject")
def version_reject(
    model: ModelArgument,
    version: Annotated[int, typer.Argument(min=1, help="Version number.")],
    reason: ReasonOption = "",
    repository: RepositoryOption = "",
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Withdraws a version on every server of the repository, or removes a candidate."""
    _decide("reject", model, version, reason, repository, admin)
    print(f"{model} {version}: rejected")


def rollback(
    model: ModelArgument,
    generation: GenerationArgument = None,
    reason: ReasonOption = "",
    only: OnlyOption = None,
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Goes back to an earlier generation or version on every server of the repository."""
    send_rollback(model, generation, reason, only, admin)


def version_line(model: str, entry: Mapping[str, Any]) -> str:
    """Return a version, as the admin port describes it, in one line."""
    from freshet_serving.processor.errors import printable

    served = str(entry.get("generation") or "")
    state = f"served as {served}{' by default' if entry.get('default') else ''}" if served else ""
    if entry["state"] != "available" or not served:
        state = f"{state}, {entry['state']}" if state else str(entry["state"])
    parts = [state]
    if entry.get("unjudged"):
        parts.append(f"unjudged ({entry['unjudged']})")
    if entry["by"]:
        parts.append(f"by {entry['by']}")
    if entry["at"]:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(entry["at"]))))
    if entry.get("labels"):
        parts.append(f"labels {', '.join(entry['labels'])}")
    line = f"{model} {entry['version']}: {'; '.join(parts)}"
    gate = entry["gate"] if isinstance(entry["gate"], Mapping) else {}
    reasons = [f"gate: {reason}" for reason in _listed(gate.get("reasons"))]
    reported = [f"reported: {reason}" for reason in _listed(gate.get("reported"))]
    return printable(": ".join([line, *(str(why) for why in (entry["reason"], *reasons, *reported) if why)]))


def _listed(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _decide(verb: str, model: str, version: int, reason: str, repository: str, admin: str) -> None:
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    if not repository:
        route = f"/admin/models/{quoted(model)}/versions/{version}/{verb}"
        AdminClient(admin).send_json("POST", route, {"reason": reason})
        return
    from freshet_serving.processor.repository import Keyring, open_repository
    from freshet_serving.processor.versions.version_actions import reject_version, release_version

    opened = open_repository(repository).with_keys(Keyring.of_writer())
    act = release_version if verb == "release" else reject_version
    act(opened, model, version, reason)
