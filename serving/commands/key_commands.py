"""Implement `freshet keys`: signing keys of repositories, re-signing, and the trust memory of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshet_serving.serving.commands.completion import models

keys_app = typer.Typer(help="Keys that sign what is served (docs/how-to/signing.md).", no_args_is_help=True)

KeyOption = Annotated[str, typer.Option(envvar="FRESHET_KEY", help="Private key that signs what is written.")]
RepositoryOption = Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")]


@keys_app.command("new")
def keys_new(
    out: Annotated[str, typer.Option(help="Where to: NAME.key, which is secret, and NAME.pub.")] = "freshet",
) -> None:
    """Makes a key: a private file that signs, and a public one that servers trust. Replaces none."""
    from freshet_serving.processor.package import new_key

    private, public, key = new_key(out)
    print(f"key {key}: {private} signs and is secret; {public} is for --trust")


@keys_app.command("show")
def keys_show(file: Annotated[Path, typer.Argument(help="A public key, or a private one.")]) -> None:
    """Prints a key's id, by which records and messages name it."""
    from freshet_serving.processor.package import PublicKey

    print(PublicKey.read(file).id)


@keys_app.command("resign")
def keys_resign(
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    repository: RepositoryOption,
    key: KeyOption = "",
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key that has signed it so far; may be given more than once.")
    ] = None,
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Vouch for versions that nobody has signed, as they lie there now.")
    ] = False,
    version: Annotated[int | None, typer.Option(help="A version; all of them when left out.")] = None,
) -> None:
    """Signs versions anew by --key, and vouches for every record that they have: digests stay, servers go on."""
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.processor.repository import Keyring, open_repository, re_sign

    if not key:
        raise BadInput("key: --key or FRESHET_KEY wanted")
    keyring = Keyring.of(key, trust or ())
    store = open_repository(repository).with_keys(keyring)
    numbers = store.versions(model) if version is None else [store.version(model, version).manifest.version]
    if not numbers:
        store.version(model)
    for number in numbers:
        made = re_sign(store, model, number, unsigned)
        upto = f", and vouches for {made.vouched.number} records" if made.vouched else ""
        print(f"{model} {number}: signed by key {made.key}, edition {made.edition}{upto}")
    store.re_sign_kept(model, unsigned)


@keys_app.command("accept")
def keys_accept(
    model: Annotated[str, typer.Argument(help="The model.")],
    repository: Annotated[
        str, typer.Option(envvar="FRESHET_REPOSITORY", help="The server's --repository, as it was given.")
    ] = "",
    trust_memory: Annotated[
        str, typer.Option(envvar="FRESHET_TRUST_MEMORY", help="The server's --trust-memory, where it was given one.")
    ] = "",
) -> None:
    """Has a server that refuses an older state of a model take it: forgets what was trusted. Restart it, or load the
    version, then."""
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.processor.repository import TrustMemory, default_memory

    if not (repository or trust_memory):
        raise BadInput("trust_memory: --trust-memory or --repository wanted, as the server has it")
    forgotten = TrustMemory(Path(trust_memory) if trust_memory else default_memory(repository)).forget(model)
    print(f"{model}: {'what was trusted is forgotten' if forgotten else 'nothing was remembered'}")
