"""Implement `freshet delta`: list, compact and repair deltas in a repository, and control them on a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_serving.serving.commands.completion import generations, models

if TYPE_CHECKING:
    from freshet_serving.models.publishing.publisher import Publisher
    from freshet_serving.processor.generation import Generation

delta_app = typer.Typer(help="List, apply, fold and roll back deltas.", no_args_is_help=True)

AdminOption = Annotated[str, typer.Option("--admin", envvar="FRESHET_ADMIN", help="The server's admin port.")]
ModelArgument = Annotated[str, typer.Argument(help="The model.", autocompletion=models)]
ReasonOption = Annotated[str, typer.Option(help="Reason to record in the change log; `freshet delta list` shows it.")]
GenerationArgument = Annotated[
    str | None,
    typer.Argument(
        help="Generation to go back to, such as 3.16, or a version, such as 3. [what was served before]",
        autocompletion=generations,
    ),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(help="Take back one part, `model` or `entities`, with a delta; the other part stays as it is. [both]"),
]
DEFAULT_ADMIN = "http://127.0.0.1:8502"
SHOWN = 20


@delta_app.command("list")
def delta_list(
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    trust: Annotated[
        list[Path] | None, typer.Option(help="Trusted public key; exits with 1 if a record is not signed by it.")
    ] = None,
) -> None:
    """Lists a version's change log: verified deltas, rollbacks, undone deltas, and deltas that wait with the reason."""
    from freshet_serving.serving.commands.inspection import describe_deltas

    describe_deltas(repository, model, version, trust)


@delta_app.command("apply")
def delta_apply(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(help="The delta file.")],
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Applies one delta on a running server and waits until it is served."""
    from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, nearest_file
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    route, server = f"/admin/models/{quoted(model)}/deltas", AdminClient(admin)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}{nearest_file(file)}") from None
    try:
        applied = server.upload(route, data)
    except NotReady:
        raise
    except FreshetError as error:
        raise FreshetError(f"{Path(file).name}: {error}") from None
    print(
        f"{applied['model']} {applied['generation']}: {applied['rows']} rows, {applied['removed']} removed, "
        f"{applied['apply_ms']:.1f} ms"
    )


@delta_app.command("compact")
def delta_compact(
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
) -> None:
    """Folds a version's deltas into a snapshot that servers read at start. Safe while servers are running."""
    from rich.console import Console

    from freshet_serving.compiler.progress import progress_bars
    from freshet_serving.processor.repository import ChangeLog, Keyring, open_repository
    from freshet_serving.processor.tables.compaction import compact

    files = open_repository(repository).with_keys(Keyring.of_writer()).version(model, version)
    change_log = ChangeLog.of(files)
    number, console = files.manifest.version, Console()
    with progress_bars(console) as reporter:
        reporter.begin("folding", len(files.manifest.tables) + bool(files.manifest.dense))
        link = compact(files, change_log, lambda done, whole: reporter.advance(1))
    if link is None:
        print(f"{model} {number}.{change_log.history.target.step}: nothing to fold")
        return
    print(f"{model} {number}.{link.step}: written as a snapshot")


@delta_app.command("repair")
def delta_repair(
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    repository: Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Cut the log. Without it, only show what would be cut.")] = False,
    reason: ReasonOption = "",
    trust: Annotated[
        list[Path] | None, typer.Option(help="Trusted public key for records, in addition to FRESHET_TRUST.")
    ] = None,
) -> None:
    """Finds the first damaged record of a version's change log and, with --yes, writes a record that cuts the log
    there. Removes no file and never cuts a valid record. Names a damaged file of a delta that is served; no cut
    repairs it. Exits with 1 if damage was found and not cut."""
    from freshet_serving.processor.errors import printable
    from freshet_serving.processor.repository import (
        ChangeLog,
        Keyring,
        find_damage,
        find_damaged_file,
        open_repository,
        repair,
    )

    keyring = Keyring.of_writer(trust=trust or ())
    change_log = ChangeLog(open_repository(repository).with_keys(keyring).version(model, version))
    damage = find_damage(change_log)
    history = change_log.history
    where = f"{model} {history.version}.{history.head.step}"
    if damage is None:
        damaged = find_damaged_file(change_log)
        if damaged is None:
            print(f"{where}: nothing to repair; all {history.number} records that a server reads at start are valid")
            return
        before, why = damaged
        print(f"{where}: all {history.number} records that a server reads at start are valid, but {printable(why)}")
        print(f"  restore that file, or roll back to {history.version}.{before.step}, the generation before it")
        raise typer.Exit(1)
    print(f"{where}: record {history.number} is the last valid record")
    for number, record in enumerate(damage.cut[:SHOWN], start=damage.first):
        first = printable(damage.why).removeprefix(f"record {number}: ")
        why = first if number == damage.first else f"continues record {number - 1}"
        print(f"  record {number}: {record or 'no record'}: {why}")
    if len(damage.cut) > SHOWN:
        print(f"  and {len(damage.cut) - SHOWN:,} more, up to record {damage.last}")
    print(f"  served after the cut: {history.version}.{history.target.step}; the next step is {damage.top + 1}")
    if not yes:
        print("nothing changed; run again with --yes to cut these records")
        raise typer.Exit(1)
    repaired = repair(change_log, damage.first, reason)
    if repaired is None:
        print(f"{model}: already repaired by another process; nothing changed")
        return
    print(f"{model}: record {repaired.number} sets aside records {repaired.since} to {repaired.number - 1}")


@delta_app.command("rollback")
def delta_rollback(
    model: ModelArgument,
    generation: GenerationArgument = None,
    reason: ReasonOption = "",
    only: OnlyOption = None,
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Goes back to an earlier generation or version; the same as `freshet rollback`."""
    send_rollback(model, generation, reason, only, admin)


def send_rollback(model: str, generation: str | None, reason: str, only: str | None, admin: str) -> None:
    """Have a server go back, and print what follows; None for what was served before, and for both parts."""
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    # A script's variable that is not set would otherwise take back what nobody named.
    for name, value, examples in (("GENERATION", generation, "such as 3.16"), ("--only", only, "model or entities")):
        if value == "":
            raise BadInput(f"{name}: expected a value {examples}, got an empty one; leave it out for the default")
    route = f"/admin/models/{quoted(model)}/rollback"
    answer: dict[str, Any] = AdminClient(admin).send_json(
        "POST", route, {"generation": generation or "", "reason": reason, "only": only or ""}
    )
    print(f"{answer['model']} {answer['generation']}")
    print(answer["note"])


@delta_app.command("release")
def delta_release(
    model: ModelArgument,
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    reason: ReasonOption = "",
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Releases held deltas: every server of the repository serves them."""
    reached = _decide("release", model, version, reason, admin)
    print(f"{reached['model']} {reached['generation']}")


@delta_app.command("reject")
def delta_reject(
    model: ModelArgument,
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    reason: ReasonOption = "",
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Rejects held deltas on every server of the repository. Deltas that do not depend on the first of them are
    published again."""
    reached = _decide("reject", model, version, reason, admin)
    print(f"{reached['model']} {reached['generation']}")
    print(reached["note"])


def _decide(verb: str, model: str, version: int | None, reason: str, admin: str) -> dict[str, Any]:
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    body = {"version": version, "reason": reason}
    decided: dict[str, Any] = AdminClient(admin).send_json("POST", f"/admin/models/{quoted(model)}/{verb}", body)
    return decided


@delta_app.command("make")
def delta_make(
    model: ModelArgument,
    from_export: Annotated[
        Path,
        typer.Option(
            "--from-export",
            help="The retrained model, in any format of `freshet import`; with --entity, the entity's whole table.",
        ),
    ],
    repository: Annotated[str, typer.Option("--repository", envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    version: Annotated[int | None, typer.Option(help="Version number. [newest]")] = None,
    signature: Annotated[str, typer.Option(help="Signature of a SavedModel to serve.")] = "serving_default",
    ragged: Annotated[list[str] | None, typer.Option(help="Same value as for `freshet import --ragged`.")] = None,
    sparse: Annotated[list[str] | None, typer.Option(help="Same value as for `freshet import --sparse`.")] = None,
    entity: Annotated[
        str, typer.Option(help="Entity whose features to publish, of a table in Parquet, CSV or TFRecord.")
    ] = "",
) -> None:
    """Publishes the difference between a retrained model, or an entity's table, and what is served as one delta."""
    if entity:
        _make_features(model, from_export, repository, version, entity)
        return
    from freshet_serving.compiler.imports.importing import ImportOptions
    from freshet_serving.compiler.imports.retrained import read_retrained
    from freshet_serving.models.publishing.publisher import Publisher
    from freshet_serving.processor.repository import open_repository
    from freshet_serving.serving.commands.import_command import groups

    opened = open_repository(repository).version(model, version)
    options = ImportOptions(signature, groups(ragged, "--ragged"), groups(sparse, "--sparse"))
    export = read_retrained(from_export, opened, options)
    publisher = Publisher(repository, model, opened.manifest.version)
    # The difference is taken to the generation that is served now, whatever was rolled back before.
    before = publisher.accept_served()
    generation = publisher.publish_difference(export.tables, export.dense, hashed=True)
    for note in export.notes:
        print(note)
    _print_difference(model, publisher, before, generation)


@delta_app.command("follow")
def delta_follow(
    model: ModelArgument,
    entity: Annotated[str, typer.Option(help="Entity whose features to publish.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="Rows with the key and all columns: a folder of Parquet files, redis://host/stream or "
            "kafka://host/topic.",
        ),
    ],
    state: Annotated[str, typer.Option(help="Folder with the position in the stream.")],
    repository: Annotated[str, typer.Option("--repository", envvar="FRESHET_REPOSITORY", help="Folder of models.")],
    every: Annotated[float, typer.Option(help="Longest time in seconds that a row waits for others.")] = 1.0,
    rows: Annotated[int, typer.Option(min=1, help="Most rows of a delta.")] = 10_000,
    once: Annotated[bool, typer.Option("--once", help="End with the rows that are there.")] = False,
) -> None:
    """Publishes an entity's features as their rows arrive. Run it again after a crash to continue."""
    from freshet_serving.models.streams.feature_feed import FeatureFeed
    from freshet_serving.serving.commands.shutdown_signals import stop_on_signal

    feed = FeatureFeed(
        repository, model, entity, source, state, follow=not once, every_s=every, rows=rows,
        note=lambda line: print(line, flush=True),
    )  # fmt: skip
    stop_on_signal(feed.stop)
    feed.run()
    print(f"{feed.published} rows published, {feed.skipped} skipped")


def _make_features(model: str, path: Path, repository: str, version: int | None, entity: str) -> None:
    from freshet_serving.models.data.entity_table import read_entity
    from freshet_serving.models.publishing.publisher import Publisher

    publisher = Publisher(repository, model, version)
    before = publisher.accept_served()
    keys, columns = read_entity(publisher.manifest, entity, str(path)).newest()
    generation = publisher.publish_difference({}, entities={entity: (keys, columns)})
    _print_difference(model, publisher, before, generation)


def _print_difference(model: str, publisher: Publisher, before: Generation, generation: Generation) -> None:
    """Print a published difference; exit with 1 if servers hold it."""
    delta = publisher.last
    if delta is None:
        print(f"{model} {before}: no differences")
    else:
        print(
            f"{model} {generation}: {delta.rows} rows, {delta.removed} removed, {len(delta.dense)} dense weights, "
            f"{delta.nbytes} bytes"
        )
    if publisher.held:
        print(
            f"HELD: servers do not serve {model} {generation}: {publisher.held}; `freshet delta release {model} "
            f"--version {generation.version}` serves it"
        )
        raise typer.Exit(1)
