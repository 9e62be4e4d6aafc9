"""A toy: a row store that is a folder with a file for each key, at toyrows:///its/path.

folder_store  the store
"""

from freshet_serving.processor.ports import Extension

__all__: list[str] = []


def _open(url, timeout_s, clock):
    from freshet_serving.processor.extensions.toy_rows.folder_store import FolderStore

    return FolderStore(url)


REQUIRES = ("remote_rows",)
EXTENSION = Extension(row_stores={"toyrows": _open})
