"""The main loop of every rank except rank 0: create the trainer that rank 0 describes, then run its commands.

Batches arrive on their own channel and thread, which transforms them ahead of learning. Invariants: a batch is kept
until one is requested whose number is more than KEPT higher. A rank's error is sent to all ranks and becomes rank 0's;
no rank waits for a failed one. A rank does not end before rank 0, because the end of any process ends all: after an
error it waits to be ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.model_section import ONE_LABEL, NetworkConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.parallel.batch_slices import decoded
from freshet_serving.models.parallel.commands import HANDLERS, RankCommand, receive_command
from freshet_serving.models.parallel.lead_trainer import NO_MORE, LeadTrainer, unnumbered
from freshet_serving.models.parallel.rank_trainer import NO_ROWS, RankTrainer
from freshet_serving.models.parallel.ranks import RankFailed, Ranks, receive_arrays, send_arrays
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.package import Manifest

Float32s = NDArray[np.float32]
Arrived = tuple[BoundRequest, Float32s, Float32s]

KEPT = 8
"""Batches kept behind the last one requested: those read ahead of it may be requested later."""


class ArrivingBatches:
    def __init__(self, batches: Ranks, trainer: RankTrainer) -> None:
        self._batches, self._trainer = batches, trainer
        self._names = [i.name for i in trainer.manifest.inputs]
        self._changed, self._arrived = threading.Condition(), dict[int, Arrived | FreshetError]()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._receive, name="batches", daemon=True)
        self._thread.start()

    def take(self, number: int) -> Arrived:
        """Wait for a batch and return it; raise the error of binding it."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._arrived or self._error is not None)
            if number not in self._arrived:
                raise self._error or RankFailed(f"batch {number} is no longer kept")
            for before in [other for other in self._arrived if other < number - KEPT]:
                del self._arrived[before]
            batch = self._arrived[number]
        if isinstance(batch, FreshetError):
            raise batch
        return batch

    def close(self) -> None:
        self._thread.join()

    def _receive(self) -> None:
        try:
            while True:
                number, message = unnumbered(self._batches.receive(0))
                if number == NO_MORE:
                    return
                try:
                    arrived: Arrived | FreshetError = self._bound(message)
                except FreshetError as error:
                    arrived = error
                with self._changed:
                    self._arrived[number] = arrived
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _bound(self, message: NDArray[np.uint8]) -> Arrived:
        with self._trainer.profile.timed("transform"):
            columns, label, share = decoded(message, self._names)
            return self._trainer.plan.bind_inputs(columns) if len(label) else NO_ROWS, label, share


class LeadTrainerFactory:
    """Factory of rank 0's trainer, for TrainingRun; makes all other ranks create theirs."""

    def __init__(self, ranks: Ranks, batches: Ranks) -> None:
        self._ranks, self._batches = ranks, batches
        self.trainer: LeadTrainer | None = None

    def __call__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        network: NetworkConfig = ONE_LABEL,
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        scratch: Path | None = None,
    ) -> LeadTrainer:
        announced = {
            "settings": asdict(settings),
            "network": asdict(network),
            "fusion": dict(fusion or {}),
            "tables": {name: asdict(table) for name, table in (tables or {}).items()},
            "scratch": str(scratch or ""),
        }
        described = [np.frombuffer(part, np.uint8) for part in (manifest.to_json(), json.dumps(announced).encode())]
        for to in range(1, self._ranks.size):
            send_arrays(self._ranks, to, described)
        self.trainer = LeadTrainer(self._ranks, self._batches, manifest, settings, network, fusion, tables, scratch)
        return self.trainer

    def close(self, failed: str = "") -> None:
        """End all ranks; `failed` is the reason if the run did not complete."""
        if self.trainer is not None:
            self.trainer.close(failed)
        else:
            self._ranks.fail(failed or "nothing to train")


def serve(ranks: Ranks, batches: Ranks) -> None:
    """Run a rank other than rank 0 to its end; raise RankFailed if it or another one cannot go on."""
    try:
        trainer = _new_trainer(ranks)
        arriving = ArrivingBatches(batches, trainer)
        while True:
            order, arrays = receive_command(ranks)
            trainer.steps = order.steps
            if order.operation == RankCommand.END:
                arriving.close()
                return
            if order.operation in HANDLERS:
                send_arrays(ranks, 0, HANDLERS[order.operation](trainer, order.number, arrays))
                continue
            bound, label, share = arriving.take(order.number)
            if order.operation == RankCommand.LEARN:
                trainer.learn_local(bound, label, share)
            elif order.operation == RankCommand.SCORE:
                send_arrays(ranks, 0, [trainer.score_local(bound)])
            else:
                send_arrays(ranks, 0, [*trainer.pool_local(bound).values()])
    except RankFailed:
        raise
    except Exception as error:
        line = (
            str(error) if isinstance(error, FreshetError) else f"process {ranks.rank}: {type(error).__name__}: {error}"
        )
        ranks.fail(line)
        raise RankFailed(line) from error


def _new_trainer(ranks: Ranks) -> RankTrainer:
    described, announced = (part.tobytes() for part in receive_arrays(ranks, 0))
    manifest, raw = Manifest.from_json(described), json.loads(announced)
    network = raw["network"] | {key: tuple(raw["network"][key]) for key in ("labels", "label_weights")}
    scratch = Path(raw["scratch"])
    return RankTrainer(
        ranks,
        manifest,
        TrainSettings(**raw["settings"]),
        NetworkConfig(**network),
        raw["fusion"],
        {name: TableConfig(**table) for name, table in raw["tables"].items()},
        # The folder may not exist on another machine.
        scratch if raw["scratch"] and scratch.is_dir() else None,
    )
