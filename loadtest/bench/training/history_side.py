"""Freshet's trainer over histories, as `freshet train` drives it, in the race of steps (history_race).

Arguments: the folder of MovieLens-1M, rows, network, batch rows. Nothing is tuned.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.training.sequence_rows import SequenceRows
from loadtest.bench.training.turns import serve


def main() -> None:
    data, all_rows, arch, batch_rows = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    rows = SequenceRows(data, all_rows)
    config, source = rows.config(arch), rows.source(arch)
    names, learned = [f.name for f in config.features], rows.parts["learned"][1]
    settings = chosen(config.train, config.features, learned, share_of_ones(source))
    settings = replace(settings, batch_rows=batch_rows, seed=0)
    trainer = Trainer(draft(config, measure_scaling(source, config.features)), settings, config.network)
    random = np.random.default_rng(0)

    def batches() -> Iterator[Batch]:
        while True:
            yield from itertools.islice(rows.batches("learned", batch_rows, names, random), learned // batch_rows)

    with PrefetchPipeline(batches(), trainer.transform) as works:

        def learn(steps: int) -> float:
            return [trainer.learn(work) for work in itertools.islice(works, steps)][-1]

        serve(learn)


if __name__ == "__main__":
    main()
