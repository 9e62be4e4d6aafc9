"""Serve the files of the console at the admin port's root: fixed names and types, nothing from other hosts.

They are read once, at the start, by the names in FILES: no path of a request ever reaches a folder. The
Content-Security-Policy restricts the page: scripts and styles of this port only, none inline, no HTML made from
strings, no embedding in a frame.

Rejected: a framework with a build (the page could not be changed in an installed package, and would be ten times as
large); EventSource (it sends no authorization header, and a token in an address ends up in logs); opening the data port
to the page's origin (any page with the address could ask for scores).
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import Response

from freshet_serving.processor.errors import NotFound

INDEX = "index.html"
FILES = (
    "actions.js",
    "api.js",
    "app.js",
    "best.js",
    "charts.js",
    "commands.js",
    "console.css",
    "dom.js",
    "explain.js",
    "formats.js",
    "held.js",
    "model.js",
    "timeline.js",
    "overview.js",
    "state.js",
    "tables.js",
    "traffic.js",
    "tryit.js",
)
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Revalidated on each use, with 304 if unchanged: a new server never meets an old page.
    "cache-control": "no-cache",
}


class ConsoleFile(NamedTuple):
    data: bytes
    media_type: str
    etag: str


class ConsoleFiles:
    def __init__(self) -> None:
        folder = resources.files("freshet_serving.serving.extensions.admin").joinpath("console")
        self._files = {name: _file(name, folder.joinpath(name).read_bytes()) for name in (INDEX, *FILES)}

    def add_to(self, app: FastAPI) -> None:
        app.get("/", include_in_schema=False)(self.index)
        app.get("/console/{name}", include_in_schema=False)(self.file)

    async def index(self, request: Request) -> Response:
        return self._reply(INDEX, request)

    async def file(self, name: str, request: Request) -> Response:
        return self._reply(name, request)

    @property
    def nbytes(self) -> int:
        return sum(len(file.data) for file in self._files.values())

    def _reply(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            raise NotFound("console: no such file")
        headers = {**HEADERS, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)


def _file(name: str, data: bytes) -> ConsoleFile:
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return ConsoleFile(data, TYPES[name.rpartition(".")[2]], etag)
