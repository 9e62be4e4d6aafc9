"""Replay the deltas of the sample into a repository of its own, as a trainer would publish them.

A recorded delta is a file of the version and the record of its chain, written in this order, each whole under its name:
the chain is the one that was trained, so every generation has the content and the digest that it had then. Each is
written once; when all are there, the sample stays as it is.

The repository is a temporary folder, which goes away with the server.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import threading
import zipfile
from pathlib import Path

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import atomic_file

log = logging.getLogger("freshet.sample")

MODEL, VERSION = "sample", 1
FOLDER = Path(__file__).parent
SAMPLE, REQUEST = FOLDER / "sample.zip", FOLDER / "request.json"
INTERVAL_S = 1.0
SHARED_MEMORY = Path("/dev/shm")
"""Where files can be written on a read-only system; it has no other use here."""

_RECORD = re.compile(r"chain/(\d+)\.json")


class SampleReplay:
    """A context with a repository of the sample (`repository`), and the thread that adds its deltas."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        """Lay out the repository with the full version.

        Raises BadInput if no temporary folder can be written to.
        """
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._replay, name="freshet-sample", daemon=True)
        self.repository = _temporary_folder()
        self._version = self.repository / MODEL / str(VERSION)
        try:
            with zipfile.ZipFile(SAMPLE) as sample:
                self.records = sorted(name for name in sample.namelist() if _RECORD.fullmatch(name))
                later = {*self.records, *map(delta_of, self.records)}
                for name in sample.namelist():
                    if name not in later:
                        self._write(sample, name)
        except OSError as error:
            self.close()
            raise BadInput(f"sample: its repository cannot be written: {error.strerror or error}") from None

    def __enter__(self) -> SampleReplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, http_port: int) -> None:
        """Start to add deltas, and log a request to try at `http_port`."""
        body = json.dumps(json.loads(REQUEST.read_text())["body"])
        log.info(
            "a new delta every %g s; try: curl -i localhost:%d/v1/models/%s:predict -d '%s'",
            self._interval_s,
            http_port,
            MODEL,
            body,
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the repository."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        shutil.rmtree(self.repository, ignore_errors=True)

    def _replay(self) -> None:
        try:
            with zipfile.ZipFile(SAMPLE) as sample:
                for record in self.records:
                    if self._ended.wait(self._interval_s):
                        return
                    self._write(sample, delta_of(record))
                    self._write(sample, record)
        except OSError as error:
            log.warning("sample: no further deltas: %s", error.strerror or error)
            return
        log.info("sample: all %d deltas are published", len(self.records))

    def _write(self, sample: zipfile.ZipFile, name: str) -> None:
        path = self._version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(sample.read(name))


def delta_of(record: str) -> str:
    """Return the name of the delta that a record of the chain leads to."""
    step = _RECORD.fullmatch(record)
    assert step is not None, "a record is named by its number"
    return f"deltas/{int(step[1])}.safetensors"


def _temporary_folder() -> Path:
    """Return a new folder, in shared memory where no disk can be written to."""
    try:
        return Path(tempfile.mkdtemp(prefix="freshet-sample-"))
    except OSError:
        pass
    try:
        return Path(tempfile.mkdtemp(prefix="freshet-sample-", dir=SHARED_MEMORY))
    except OSError:
        raise BadInput("sample: no temporary folder can be written to: set TMPDIR to one") from None
