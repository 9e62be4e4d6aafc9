"""Keeps each value in a file of its own."""

from contextlib import suppress
from pathlib import Path

from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.tables.row_store import StoreReply


class FolderStore:
    """A RowStore in a folder."""

    def __init__(self, url):
        """Find the folder; it exists already."""
        self._folder = Path(url.removeprefix("toyrows://"))
        if not self._folder.is_dir():
            raise BadInput("remote.url: expected toyrows:// and the path of a folder")

    def fetch(self, keys, max_nbytes):
        """Return the values; all are lost if they are larger than expected."""
        try:
            values = [self.read(key, max_nbytes) for key in keys]
        except NotReady as problem:
            return StoreReply([None] * len(keys), str(problem))
        if sum(len(value) for value in values if value is not None) > max_nbytes:
            return StoreReply([None] * len(keys), "sent more than expected")
        return StoreReply(values)

    def read(self, key, max_nbytes):
        """Return a value of at most max_nbytes, or None."""
        try:
            with self._path(key).open("rb") as file:
                value = file.read(max_nbytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotReady("the folder cannot be read") from error
        if len(value) > max_nbytes:
            raise NotReady("a value is larger than expected")
        return value

    def write(self, values):
        """Write a file for each value."""
        for key, value in values.items():
            self._path(key).write_bytes(value)

    def delete(self, keys):
        """Remove the files that exist."""
        for key in keys:
            with suppress(FileNotFoundError):
                self._path(key).unlink()

    def close(self):
        """Do nothing: no file stays open."""

    def _path(self, key):
        return self._folder / key.hex()
