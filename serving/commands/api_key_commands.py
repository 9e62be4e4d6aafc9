"""Implement `freshet key`: API keys of a server's clients (docs/how-to/access.md).

The file is that of `freshet serve --api-keys` in the environment, FRESHET_API_KEYS, or api-keys.toml.
Signing keys are managed by `freshet keys`.
"""

from __future__ import annotations

import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

key_app = typer.Typer(
    help="API keys of a server's clients (docs/how-to/access.md), in FRESHET_API_KEYS or api-keys.toml.",
    no_args_is_help=True,
)

RateOption = Annotated[float, typer.Option(help="Requests per second, and the burst size. 0: unlimited.", min=0)]
ConcurrencyOption = Annotated[int, typer.Option(help="Concurrent requests. 0: unlimited.", min=0)]
DAYS = re.compile(r"([0-9]{1,5})d")


@key_app.command("create")
def key_create(
    name: Annotated[str, typer.Argument(help="Name of the client, shown in logs and messages.")],
    scope: Annotated[list[str], typer.Option(help="Scope to grant; repeatable.")],
    expires: Annotated[str, typer.Option(help="90d, a date, or a time with time zone. [never]")] = "",
    rate: RateOption = 0.0,
    concurrency: ConcurrencyOption = 0,
) -> None:
    """Creates a key and prints it once; the file stores only its SHA-256. Servers accept it within two seconds."""
    from freshet_serving.serving.access.key_file import RateLimits, changing

    until_s = _until_s(expires)
    with changing(_file()) as held:
        held[0], secret = held[0].added(name, scope, until_s, RateLimits(rate, concurrency))
    print(secret)


@key_app.command("list")
def key_list() -> None:
    """Prints the keys of a file, one per line."""
    from freshet_serving.serving.access.key_file import MAX_FILE_NBYTES, ApiKeys, read_private

    api_keys = ApiKeys.parse(read_private(_file(), "keys", MAX_FILE_NBYTES))
    for key in api_keys.keys:
        expires = "never" if key.expires_s == math.inf else f"{datetime.fromtimestamp(key.expires_s, UTC):%Y-%m-%d}"
        limits = f"rate={key.limits.rate or 'any'} concurrency={key.limits.concurrency or 'any'}"
        print(f"{key.name}  scopes={','.join(sorted(key.scopes))} expires={expires} {limits}")
    if api_keys.address.rate or api_keys.address.concurrency:
        limits = f"rate={api_keys.address.rate or 'any'} concurrency={api_keys.address.concurrency or 'any'}"
        print(f"each address: {limits}")


@key_app.command("revoke")
def key_revoke(name: Annotated[str, typer.Argument(help="The key's name.")]) -> None:
    """Removes a key from the file. Servers reject it within two seconds; requests in flight are answered."""
    from freshet_serving.serving.access.key_file import changing

    with changing(_file()) as held:
        held[0] = held[0].without(name)
    print(f"{name}: revoked")


@key_app.command("address")
def key_address(rate: RateOption = 0.0, concurrency: ConcurrencyOption = 0) -> None:
    """Limits the requests of one client address, whatever key it uses, and how fast it can guess keys."""
    from freshet_serving.serving.access.key_file import ApiKeys, RateLimits, changing

    with changing(_file()) as held:
        held[0] = ApiKeys.parse(ApiKeys(held[0].keys, RateLimits(rate, concurrency)).text().encode())
    print(f"each address: rate={rate or 'any'} concurrency={concurrency or 'any'}")


def _file() -> Path:
    return Path(os.environ.get("FRESHET_API_KEYS") or "api-keys.toml")


def _until_s(text: str) -> float:
    """Parse an expiry as Unix time, in the future; "" means never. Raises BadInput."""
    from freshet_serving.processor.errors import BadInput

    if not text:
        return math.inf
    now = datetime.now(UTC)
    try:
        if days := DAYS.fullmatch(text):
            when = now + timedelta(days=int(days[1]))
        else:
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        if when <= now:
            raise BadInput(f"expires: expected a time to come, got {text[:64]!r}")
        return float(int(when.timestamp()))
    except (ValueError, OverflowError):
        raise BadInput(f"expires: expected 90d, 2027-01-01 or a time with its zone, got {text[:64]!r}") from None
