"""Tables in a row store, as a server and the command line see them: the command `freshet tables`.

table_commands  tables
"""

from __future__ import annotations

from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _tables() -> Any:
    from freshet_serving.serving.extensions.remote_rows.table_commands import tables_app

    return tables_app


REQUIRES = ("remote_rows",)
EXTENSION = ServerExtension(commands={"tables": _tables})
