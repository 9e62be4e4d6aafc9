"""Implement `freshet keys`: signing keys of repositories, re-signing, and the trust memory of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from freshet_serving.serving.commands.completion import models

keys_app = typer.Typer(
    help="Keys that sign what is served (docs/how-to/access.md#sign-models-and-deltas).", no_args_is_help=True
)

KeyOption = Annotated[str, typer.Option(envvar="FRESHET_KEY", help="Private key to sign written files with.")]
RepositoryOption = Annotated[str, typer.Option(envvar="FRESHET_REPOSITORY", help="Folder of models.")]


@keys_app.command("new")
def keys_new(
    out: Annotated[
        str, typer.Option(help="Path without suffix; writes NAME.key, which is secret, and NAME.pub.")
    ] = "freshet",
) -> None:
    """Creates a key pair: a private key that signs and a public key that servers trust. Never overwrites a file."""
    from freshet_serving.processor.package import new_key

    private, public, key = new_key(out)
    print(f"key {key}: {private} is the private key, keep it secret; {public} is the public key, for --trust")


@keys_app.command("show")
def keys_show(file: Annotated[Path, typer.Argument(help="A public or private key.")]) -> None:
    """Prints a key's id, as used in records and messages."""
    from freshet_serving.processor.package import PublicKey

    print(PublicKey.read(file).id)


@keys_app.command("resign")
def keys_resign(
    model: Annotated[str, typer.Argument(help="A model of the repository.", autocompletion=models)],
    repository: RepositoryOption,
    key: KeyOption = "",
    trust: Annotated[list[Path] | None, typer.Option(help="Public key of the current signatures; repeatable.")] = None,
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Also sign versions that have no signature, in their current state.")
    ] = False,
    version: Annotated[int | None, typer.Option(help="Version number. [all]")] = None,
) -> None:
    """Signs versions and all of their records again with --key. Digests do not change and servers keep running."""
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.processor.repository import Keyring, open_repository, re_sign

    if not key:
        raise BadInput("key: expected --key or FRESHET_KEY")
    keyring = Keyring.of(key, trust or ())
    store = open_repository(repository).with_keys(keyring)
    numbers = store.versions(model) if version is None else [store.version(model, version).manifest.version]
    if not numbers:
        store.version(model)
    for number in numbers:
        signed = re_sign(store, model, number, unsigned)
        upto = f", and vouches for {signed.vouched.number} records" if signed.vouched else ""
        print(f"{model} {number}: signed by key {signed.key}, edition {signed.edition}{upto}")
    store.re_sign_kept(model, unsigned)


@keys_app.command("accept")
def keys_accept(
    model: Annotated[str, typer.Argument(help="The model.")],
    repository: Annotated[
        str, typer.Option(envvar="FRESHET_REPOSITORY", help="The server's --repository, exactly as given.")
    ] = "",
    trust_memory: Annotated[
        str, typer.Option(envvar="FRESHET_TRUST_MEMORY", help="The server's --trust-memory, if set.")
    ] = "",
) -> None:
    """Forgets the newest trusted state of a model, so that a server accepts an older one. Then restart the server or
    load the version."""
    from freshet_serving.processor.errors import BadInput
    from freshet_serving.processor.repository import TrustMemory, default_memory

    if not (repository or trust_memory):
        raise BadInput("trust_memory: expected --trust-memory or --repository, with the server's value")
    forgotten = TrustMemory(Path(trust_memory) if trust_memory else default_memory(repository)).forget(model)
    print(f"{model}: {'forgot what was trusted' if forgotten else 'nothing to forget'}")
