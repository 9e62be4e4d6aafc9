"""A new entry in the making: a repository, what happened to it, and the scores at each moment.

A recipe writes into `story.repository` by the code that users run, and says `story.moment(...)` whenever something has
happened. end() moves the files into the corpus and scores them. An entry that is there is never written again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.tables.compaction import compact
from tests.corpus import adapter
from tests.corpus.entry import (
    ENTRY,
    FORMAT,
    KEYS,
    REQUESTS,
    SCORES,
    STORE,
    Moment,
    Request,
    Scores,
    digests,
    read_entry,
    scores_document,
    write_json,
)
from tests.corpus.scoring import scored

EXACT, LOWER_PRECISION = 1e-6, 1e-3
MODEL = "clicks"
MACHINE_CODE = (".ov", ".pjrt")
"""Suffixes of executables that only one kind of processor and one version of a library can run."""
NOT_OF_A_MODEL = (".checkpoints", ".runs")


class Story:
    """One entry while it is made; for use in a `with` block, which removes what was not ended."""

    def __init__(
        self,
        frozen: Path,
        name: str,
        holds: str,
        commit: str,
        tolerance: float = EXACT,
        computes: str = "onnxruntime float32",
        needs: tuple[str, ...] = (),
        signing_key: Path | None = None,
    ) -> None:
        """Begin an entry (tests.corpus.entry.Entry) aside from the folder of entries; FileExistsError if it exists.

        signing_key: what the repository is signed with; its public half lies beside it.
        """
        self.folder = frozen / name
        if self.folder.exists():
            raise FileExistsError(f"{name}: in the corpus already, and no entry is ever changed: use another name")
        about = {"holds": holds, "commit": commit, "model": MODEL, "tolerance": tolerance, "computes": computes}
        self._about: dict[str, Any] = {**about, "needs": list(needs)}
        self._aside = Path(tempfile.mkdtemp(prefix="freshet-story-"))
        self.repository, self.made = self._aside / STORE, self._aside / "entry"
        self.repository.mkdir()
        (self.made / STORE).mkdir(parents=True)
        self.requests: list[Request] = []
        self.signing_key = signing_key
        self._moments: list[Moment] = []

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._aside)

    @property
    def keyring(self) -> Keyring:
        return Keyring.of(self.signing_key or "")

    @property
    def version(self) -> VersionReader:
        return Repository(self.repository).with_keys(self.keyring).version(MODEL)

    @property
    def change_log(self) -> ChangeLog:
        return ChangeLog.of(self.version)

    def moment(self, name: str) -> None:
        """Keep what has been written since the last moment, and what the repository answers with now."""
        arrived = [path for path in self._written() if not (self.made / STORE / path).exists()]
        for path in self._written():
            copy = self.made / STORE / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path in arrived:
                shutil.copyfile(self.repository / path, copy)
            elif copy.read_bytes() != (self.repository / path).read_bytes():
                raise ValueError(f"{path}: was changed after it was written: an entry's files may only be added to")
        change_log = self.change_log
        generation = str(Generation(change_log.manifest.version, change_log.history.target.step))
        self._moments.append(Moment(name, generation, sorted(arrived, key=_turn)))

    def roll_back(self, step: int, reason: str) -> None:
        with self._processor() as processor:
            processor.rollback(MODEL, Generation(1, step), reason)

    def reject(self, reason: str) -> None:
        with self._processor() as processor:
            processor.host.reject_deltas(MODEL, 1, reason)

    def compact(self) -> None:
        if compact(self.version, self.change_log) is None:
            raise ValueError("there was nothing to fold")

    def end(self) -> None:
        """Score all moments and move the entry into the corpus."""
        left_out = [name for name in self._moments[0].arrived if name.endswith(MACHINE_CODE)]
        for name in left_out:
            (self.made / STORE / name).unlink()
            self._moments[0].arrived.remove(name)
        if self.signing_key is not None:
            keys = self.made / KEYS
            keys.mkdir()
            for path in (self.signing_key, self.signing_key.with_suffix(".pub")):
                shutil.copyfile(path, keys / path.name)
        write_json(self.made / REQUESTS, [_plain(request) for request in self.requests])
        self._write_entry(left_out)
        scores = self._score()
        write_json(self.made / SCORES, scores_document(scores))
        self._write_entry(left_out)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.made, self.folder)

    def _score(self) -> dict[str, Scores]:
        """The scores at every moment, of which both ways to reach it have to give the same."""
        scores: dict[str, Scores] = {}
        with tempfile.TemporaryDirectory(prefix="freshet-story-") as aside:
            for result in scored(read_entry(self.made), Path(aside)):
                where = f"{result.moment.name}, {result.how}, {result.request.name}"
                if result.computes != self._about["computes"]:
                    raise ValueError(f"{where}: expected {self._about['computes']}, got {result.computes}")
                first = scores.setdefault(f"{result.moment.name}/{result.request.name}", result.scores)
                for name, array in result.scores.items():
                    if not np.isfinite(array).all() or np.abs(array - first[name]).max() > EXACT:
                        raise ValueError(f"{where}: expected finite scores, the same in both ways")
        for before, after in pairwise(self._moments):
            same = all(_equal(scores, before, after, request) for request in self.requests)
            if same != (before.generation == after.generation):
                raise ValueError(f"{after.name}: expected other scores for another generation, and only for that")
        return scores

    def _write_entry(self, left_out: list[str]) -> None:
        moments = [asdict(moment) for moment in self._moments]
        document = {"format": FORMAT, **self._about, "left_out": left_out, "moments": moments}
        write_json(self.made / ENTRY, {**document, "files": digests(self.made)}, indent=1)

    def _processor(self) -> adapter.Processor:
        return adapter.opened(self.repository, signing_key=self.signing_key or "")

    def _written(self) -> list[str]:
        """Files of the repository, by their paths, but for what is a trainer's own."""
        paths = [path.relative_to(self.repository) for path in self.repository.rglob("*") if path.is_file()]
        return [path.as_posix() for path in paths if path.parts[0] not in NOT_OF_A_MODEL]


def requests_of(name: str, inputs: dict[str, Any], ways: tuple[str, ...] = ("",)) -> list[Request]:
    return [Request(f"{name} {way}".strip(), inputs, way) for way in ways]


def _plain(request: Request) -> dict[str, Any]:
    plain = asdict(request)
    if not request.way:
        del plain["way"]
    json.dumps(plain)
    return plain


def _turn(path: str) -> tuple[bool, bool, str]:
    """Records name deltas and snapshots, so they come after them; a version's manifest is its last file."""
    return path.endswith("/model.json"), "/chain/" in path, path


def _equal(scores: dict[str, Scores], before: Moment, after: Moment, request: Request) -> bool:
    earlier, later = scores[f"{before.name}/{request.name}"], scores[f"{after.name}/{request.name}"]
    return all(np.array_equal(earlier[name], later[name]) for name in earlier)
