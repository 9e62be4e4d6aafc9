"""Whoever publishes: deltas by upload, by a file that is dropped, by a record; rollbacks; new versions.

Invariants
- One change at a time (Field.changing), each drawn on what the disk says is the head: so the truth of a generation
  follows from its line alone, whoever committed it and whether or not the answer came.
- What will be met is known to the Truth before it is published.
- A generation counts as acknowledged when an answer of 200 came for it, or its record was committed here: from then on
  it must never be gone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import threading
import time
from collections import Counter

from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.chain_record import HOLD, RELEASE, ROLLBACK
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.dropped_deltas import unrecorded_deltas
from freshet_serving.processor.repository.model_repository import Repository
from tests.faults.truth import Change, full_state, weights_of
from tests.support.packages import write_package

PAUSE_S, ADOPTED_S = 0.15, 60.0
WAYS = {"upload": 60, "record": 18, "drop": 14, "rollback": 6, "version": 1}
# A chain is read whole before each change.
MOST_STEPS = 150
# Never asked for: with a memory budget they are what does not fit.
FURTHER = range(1000, 21_000)


class Unserved(Exception):
    """What should have happened by now has not."""


class Committer(threading.Thread):
    """Changes the repository of a field until it is stopped. acknowledged: generations, as (version, step, digest)."""

    def __init__(self, field, seed):
        super().__init__(daemon=True)
        self._field, self._draw = field, random.Random(seed)
        self._states = {}
        self._version = 0
        # A rollback that one server made alone, because the repository could not be written: asked again until it is.
        self._owed = None
        self.acknowledged = set()
        # What guards did: (version, number, kind) of their records.
        self.guarded = set()
        self.counts = Counter()
        self.stopped = threading.Event()

    def first(self):
        """Publishes version 1."""
        self._publish_version(1)

    def run(self):
        while not self.stopped.wait(PAUSE_S):
            with self._field.changing:
                began_s = time.monotonic()
                try:
                    self.counts[self.act()] += 1
                except (FreshetError, OSError, http.client.HTTPException, Unserved) as error:
                    excuse = self._field.excuses.excused(began_s, time.monotonic(), request=False)
                    if excuse:
                        self._field.tally.note(f"change lost by {excuse}")
                    else:
                        self._field.tally.fault("change refused", f"{type(error).__name__}: {error}")

    def change_log(self, version=None):
        """As the disk has it now, of the newest version that was published here or another."""
        change_log = ChangeLog.of(
            Repository(self._field.repository).version("small", version or self._version), whole=True
        )
        # The rollbacks that are asked for here give no reason.
        guarded = [
            event for event in change_log.history.events if event.kind in (HOLD, RELEASE, ROLLBACK) and event.reason
        ]
        self.guarded |= {(change_log.manifest.version, event.number, event.kind) for event in guarded}
        return change_log

    def state_of(self, change_log, link):
        """What a generation holds, by its line."""
        key = change_log.manifest.version, link.digest
        if key not in self._states:
            version, state = change_log.manifest.version, full_state(change_log.manifest.version)
            for earlier in change_log.history.line(link)[1:]:
                state = Change(version, earlier.step).after(state)
            self._states[key] = state
        return self._states[key]

    def act(self):
        """Makes one change, and says which. The caller holds Field.changing."""
        if self._owed is not None and self._field.serves(self._owed[0]):
            self._roll_back(*self._owed)
            return "rollback"
        change_log = self.change_log()
        version, head, top = change_log.manifest.version, change_log.history.head, change_log.history.top
        if any(bare.step > top for bare in unrecorded_deltas(change_log.folder)):
            # Dropped while nobody was there: somebody has to take it before another step can be.
            self._wait_until_adopted(change_log)
            return "waited"
        held = change_log.history.gate is not None
        way = "version" if top >= MOST_STEPS else self._draw.choices(list(WAYS), list(WAYS.values()))[0]
        if way == "version":
            self._publish_version(version + 1)
            return way
        if way == "rollback" and not held and len(change_log.history.line()) > 3:
            back = change_log.history.line()[-1 - self._draw.randint(1, 2)]
            self._roll_back(self._field.server(), f"{version}.{back.step}")
            return way
        if held:
            # Behind a gate records alone are taken; what is sound as a whole ends the hold.
            way = "record"
        change = Change(version, top + 1)
        delta = change.delta(head.step)
        self._field.truth.know(f"{version}.{change.step}", change.after(self.state_of(change_log, head)))
        if way == "record":
            link = change_log.publish(delta)
            self.acknowledged.add((version, link.step, link.digest))
            return way
        aside = self._field.folder / "delta.safetensors"
        write_delta(aside, delta)
        if way == "drop":
            target = change_log.folder / "deltas" / f"{change.step}.safetensors"
            target.parent.mkdir(exist_ok=True)
            arriving = target.with_name(".arriving.tmp")
            try:
                shutil.copyfile(aside, arriving)
                os.replace(arriving, target)
            finally:
                arriving.unlink(missing_ok=True)
            self._wait_until_adopted(change_log)
            return way
        self._ask(self._field.server(), "deltas", aside.read_bytes(), "application/octet-stream")
        link = self.change_log(version).history.known(change.step)
        if link is None:
            raise Unserved(f"{version}.{change.step} was acknowledged and has no record")
        self.acknowledged.add((version, link.step, link.digest))
        return "upload"

    def _roll_back(self, server, generation):
        body = json.dumps({"generation": generation}).encode()
        recorded = self._ask(server, "rollback", body, "application/json")["recorded"]
        self._owed = None if recorded else (server, generation)

    def _ask(self, server, action, body, kind):
        if server is None:
            raise Unserved("no server is up")
        path = f"/admin/models/small/{action}"
        give_up_s = time.monotonic() + ADOPTED_S
        while True:
            status, _, reply = server.request("POST", path, body, {"content-type": kind}, admin=True)
            if status != 409 or time.monotonic() > give_up_s:
                break
            if b"serves version" in reply:
                # A version that was just published is loaded before it takes anything.
                self._release_held_version(server)
            elif b"rolled back on this server only" in reply:
                # Its guard could not write: a person has to say that the weights are meant.
                server.request(
                    "POST", "/admin/models/small/release", b"{}", {"content-type": "application/json"}, admin=True
                )
            else:
                break
            time.sleep(PAUSE_S)
        if status != 200:
            raise Unserved(f"{action}: {status} {reply[:200].decode(errors='replace')}")
        return json.loads(reply)

    def _release_held_version(self, server):
        """Releases the newest version as a person would: gates and watches stop weights that are drawn anew."""
        versions = "/admin/models/small/versions"
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            status, _, reply = server.get(versions, admin=True)
            newest = json.loads(reply)["versions"][0] if status == 200 else {}
            if newest.get("state") in ("held", "withdrawn"):
                kind = {"content-type": "application/json"}
                server.request("POST", f"{versions}/{newest['version']}/release", b"{}", kind, admin=True)

    def _wait_until_adopted(self, change_log):
        give_up_s = time.monotonic() + ADOPTED_S
        while any(bare.step > change_log.history.top for bare in unrecorded_deltas(change_log.folder)):
            if time.monotonic() > give_up_s:
                raise Unserved("a delta that was dropped is not taken")
            if (server := self._field.server()) is not None:
                self._release_held_version(server)
            if self.stopped.wait(0.02):
                return
            change_log.look()
        link = change_log.history.head
        self.acknowledged.add((change_log.manifest.version, link.step, link.digest))

    def heal(self):
        """Publishes a new version instead of one that is damaged. The caller holds Field.changing."""
        self.acknowledged = {generation for generation in self.acknowledged if generation[0] != self._version}
        self._publish_version(self._version + 1)

    def _publish_version(self, version):
        self._field.truth.know(f"{version}.0", full_state(version))
        further = FURTHER if self._field.setup.tiered else ()
        aside = self._field.folder / "aside"
        shutil.rmtree(aside, ignore_errors=True)
        written = write_package(aside, version, users=[*range(20), *further], seed=version, weights=weights_of)
        self._field.setup.before(self._field, written)
        model = self._field.repository / "small"
        model.mkdir(exist_ok=True)
        arriving = model / f".{version}.arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        try:
            shutil.copytree(aside / "small" / str(version), arriving)
            os.rename(arriving, model / str(version))
            self._version = version
        finally:
            shutil.rmtree(arriving, ignore_errors=True)
        # Nobody is to be asked for these again: the newest version serves, the one before may still do.
        for old in range(version - 3, 0, -1):
            gone = self._field.repository / "small" / str(old)
            if not gone.exists():
                break
            shutil.rmtree(gone, ignore_errors=True)
            self.acknowledged = {generation for generation in self.acknowledged if generation[0] != old}

    def lost(self):
        """Acknowledged generations that no ledger has any more."""
        missing = []
        for version in {generation[0] for generation in self.acknowledged}:
            change_log = self.change_log(version)
            missing += [
                generation
                for generation in self.acknowledged
                if generation[0] == version and generation[2] not in change_log.history.links
            ]
        return sorted(missing)

    @contextlib.contextmanager
    def held(self):
        """Nothing is published in the block, and nothing is owed."""
        with self._field.changing:
            if self._owed is not None:
                with contextlib.suppress(FreshetError, OSError, http.client.HTTPException, Unserved):
                    self.act()
            yield self.change_log()
