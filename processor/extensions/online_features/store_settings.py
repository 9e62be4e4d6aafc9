"""Define where an online store is and how to log in to it: the server's part, never a package's.

    freshet serve --online-store main=redis://redis:6379/0

or, with more to say, in the server's file:

    [online_stores.main]
    url = "rediss+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster"
    username = "freshet"
    password_file = "/run/secrets/redis"        # or password_env = "REDIS_PASSWORD"
    ca_file = "/etc/redis/ca.pem"

A URL holds no password: command lines and configuration files are read by too many.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from freshet_serving.processor.errors import BadInput, NotReady, nearest
from freshet_serving.processor.options import between, check, option, options_of, required, type_name

SINGLE, CLUSTER, SENTINEL, SOCKET = "single", "cluster", "sentinel", "socket"
SCHEMES = {
    "redis": (SINGLE, False),
    "rediss": (SINGLE, True),
    "redis+cluster": (CLUSTER, False),
    "rediss+cluster": (CLUSTER, True),
    "redis+sentinel": (SENTINEL, False),
    "rediss+sentinel": (SENTINEL, True),
    "unix": (SOCKET, False),
}
PORTS = {SINGLE: 6379, CLUSTER: 6379, SENTINEL: 26379}
MAX_PASSWORD_NBYTES = 1 << 16
OPTION_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
}


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An online store's URL, taken apart: SINGLE, CLUSTER, SENTINEL or SOCKET.

    Hosts are those of the server, of some of the cluster's nodes, or of the sentinels; `master` is what these call the
    server, or the path of the socket.
    """

    mode: str
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    master: str
    database: int


@dataclass(frozen=True, slots=True)
class OnlineStoreSettings:
    """One online store; `name` is what packages call it."""

    name: str
    url: str = field(metadata=required("Address of the store, redis://HOST:PORT/DB"))
    username: str = option("", "User of Redis' access control list", empty="the default user")
    password_env: str = option("", "Environment variable with the password")
    password_file: str = option("", "File with the password, read at each new connection")
    ca_file: str = option("", "Certificates that the store's is checked against", empty="the system's")
    cert_file: str = option("", "Client certificate")
    key_file: str = option("", "Private key of the client certificate")
    pool_size: int = option(16, "Connections of a process to one node: reads at the same time", between(1, 1024))
    cache_ttl_s: float = option(
        1.0, "How long features of one entity are served from memory", between(0, 86_400, "no cache"), unit="seconds"
    )
    cache_bytes: int = option(64 << 20, "Memory of a process for cached features of one model", between(0, 1 << 40))

    def __post_init__(self) -> None:
        where = f"online_stores.{self.name[:64]}."
        check(self, where)
        self.address()
        if self.password_env and self.password_file:
            raise BadInput(f"{where}password_file: expected only one of password_env and password_file")
        if bool(self.cert_file) != bool(self.key_file):
            raise BadInput(f"{where}key_file: expected cert_file and key_file together")
        if (self.ca_file or self.cert_file) and not self.address().tls:
            raise BadInput(f"{where}ca_file: expected a rediss:// address")

    def address(self) -> StoreAddress:
        """Take the URL apart; raises BadInput unless it is one."""
        where = f"online_stores.{self.name[:64]}.url"
        scheme, separator, rest = self.url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise BadInput(f"{where}: expected one of {', '.join(f'{s}://' for s in SCHEMES)}")
        mode, tls = SCHEMES[scheme]
        if "@" in rest:
            raise BadInput(f"{where}: expected no user or password in the address; use username and password_file")
        if "?" in rest or "#" in rest:
            raise BadInput(f"{where}: expected no options in the address; they are options of the store")
        if mode == SOCKET:
            if not rest.startswith("/"):
                raise BadInput(f"{where}: expected unix:///path/to/redis.sock")
            return StoreAddress(mode, tls, (), rest, 0)
        hosts, _, path = rest.partition("/")
        master = ""
        if mode == SENTINEL:
            master, _, path = path.partition("/")
            if not master:
                raise BadInput(f"{where}: expected {scheme}://HOST:PORT,HOST:PORT/MASTER, got no master's name")
        if path and (not path.isdecimal() or len(path) > 4 or mode == CLUSTER):
            expected = "no database (a cluster has one)" if mode == CLUSTER else "the database as a number"
            raise BadInput(f"{where}: expected {expected} after the /")
        hosts_found = tuple(_host_port(host, PORTS[mode], where) for host in hosts.split(","))
        if mode == SINGLE and len(hosts_found) > 1:
            raise BadInput(f"{where}: expected one host; several are of redis+cluster:// or redis+sentinel://")
        return StoreAddress(mode, tls, hosts_found, master, int(path or 0))

    def password(self) -> str:
        """Read the password, "" if there is none; raises NotReady if it cannot be read."""
        where = f"online store {self.name}"
        if self.password_env:
            if self.password_env not in os.environ:
                raise NotReady(f"{where}: the environment variable {self.password_env} is not set")
            return os.environ[self.password_env]
        if not self.password_file:
            return ""
        try:
            with Path(self.password_file).open(encoding="utf-8") as file:
                return file.read(MAX_PASSWORD_NBYTES).rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            raise NotReady(f"{where}: password_file cannot be read") from None


def _host_port(text: str, port: int, where: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port or port
    except ValueError:
        host = ""
    if not host:
        raise BadInput(f"{where}: expected HOST:PORT")
    return host, port


def parse_store(name: str, section: Mapping[str, Any] | str) -> OnlineStoreSettings:
    """Make settings of a section [online_stores.NAME], or of the address alone."""
    section = {"url": section} if isinstance(section, str) else section
    options = {option.name: option for option, _ in options_of(OnlineStoreSettings)}
    where = f"online_stores.{name[:64]}"
    for key, value in section.items():
        if key not in options:
            raise BadInput(f"{where}.{key[:64]}: there is no such option{nearest(key, options)}")
        expected, text = OPTION_TYPES[str(options[key].type)]
        if not isinstance(value, expected) or isinstance(value, bool):
            raise BadInput(f"{where}.{key}: expected {text}, got {type_name(value)}")
    if "url" not in section:
        raise BadInput(f"{where}.url: expected redis://HOST:PORT, got nothing")
    return OnlineStoreSettings(name, **section)
