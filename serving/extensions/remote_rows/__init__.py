"""Tables in a row store, as a server and the command line see them: the command `freshet tables`, and metrics.

table_commands  tables
remote_metrics  metric families of tables whose rows are in a row store
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from freshet_serving.serving.ports import ServerExtension

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from freshet_serving.processor.watching import ModelStats

__all__: list[str] = []


def _tables() -> Any:
    from freshet_serving.serving.extensions.remote_rows.table_commands import tables_app

    return tables_app


def _families(host: Any, stats: Sequence[ModelStats]) -> Iterable[Metric]:
    from freshet_serving.serving.extensions.remote_rows.remote_metrics import remote_families

    return remote_families(stats)


REQUIRES = ("remote_rows",)
EXTENSION = ServerExtension(commands={"tables": _tables}, metrics={"remote_rows": _families})
