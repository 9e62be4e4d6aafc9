"""Rows in the memory of a device: batches send the places of rows, and the device gathers them.

placed_rows     which tables lie there, and what runs a version's graphs on them
row_mirror      the rows on the device, and how they follow deltas
hot_rows        which rows of a table lie there, where not all do
slot_layout     what is sent of a row
slot_program    fills and runs it
slot_kernels    kernels that find places
device_modules  what the device runs, as StableHLO
"""

from __future__ import annotations

from typing import Any

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _open(files: Any, graphs: Any, plan: Any, opened: Any, nbytes: int) -> Any:
    from freshet_serving.processor.extensions.device_rows.placed_rows import open_device_rows

    return open_device_rows(files, graphs, plan, opened, nbytes)


def _describe(manifest: Any) -> str:
    from freshet_serving.processor.extensions.device_rows.placed_rows import describe

    return describe(manifest)


REQUIRES = ()
EXTENSION = Extension(device_rows=_open, descriptions={"rows on a GPU": _describe})
