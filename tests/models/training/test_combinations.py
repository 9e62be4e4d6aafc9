"""Settings that fit each other train together: published, loaded and served, their scores are the trainer's."""

import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import StartOptions, parse_config
from freshet_serving.models.evaluation.evaluate import inputs_of
from freshet_serving.models.parallel.rank_loop import LeadTrainerFactory, serve
from freshet_serving.models.parallel.ranks import RankFailed
from freshet_serving.models.training.lineage import rebuild
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import ChangeLog, VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.config.combinations import (
    INEXACT,
    NAME,
    PAIRS,
    REFUSED,
    REFUSED_LATER,
    ROWS,
    SETTINGS,
    settings_together,
    training_job,
    write_tables,
)
from tests.models.parallel.fakes import PATIENCE_S, thread_ranks

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    write_tables(folder)
    return folder


@contextmanager
def trainers(processes):
    """What makes a run's trainer: None for one process, else that of the first of several, each a thread here."""
    if processes == 1:
        yield None
        return
    ranks, batches = thread_ranks(processes), thread_ranks(processes)

    def take_part(rank):
        with suppress(RankFailed):
            serve(ranks[rank], batches[rank])

    others = [threading.Thread(target=take_part, args=(rank,), daemon=True) for rank in range(1, processes)]
    for other in others:
        other.start()
    lead = LeadTrainerFactory(ranks[0], batches[0])
    try:
        yield lead
        lead.close()
    except BaseException as error:
        ranks[0].fail(str(error) or type(error).__name__)
        raise
    finally:
        for other in others:
            other.join(PATIENCE_S)


@contextmanager
def finished_run(job):
    """A run of `freshet train` that has published a version and its deltas."""
    config = parse_config(job.raw)
    makes_run = NextItemRun if config.model.arch in NEXT_ITEM else TrainingRun
    starts = [StartOptions()] + [StartOptions(new_version=True)] * job.new_version
    for start in starts:
        with trainers(job.processes) as make_trainer:
            run = makes_run(config, start_options=start, make_trainer=make_trainer)
            run.full()
            if config.data.follow:
                # It ends with the rows that are there.
                run.stop()
            list(run.stream())
            if start is starts[-1]:
                yield run


def shown(run, version):
    """By setting, whether a run and its version have it."""
    manifest, tables = version.manifest, run.config.tables
    lookups = {f.name for f in manifest.features}
    inputs, read = {i.name for i in manifest.inputs}, {s.name for s in manifest.sequences}
    next_item = manifest.arch in NEXT_ITEM
    return {
        "events": "history" in read,
        "lists": "viewed" in read,
        "next_item": next_item,
        "entities": "history.category" in inputs if next_item else len(manifest.entities) == 1,
        "user_table": "history.city" in inputs if next_item else "city" in inputs,
        "online": len(manifest.sections.get("online_features", ())) == 1,
        "crosses": bool(lookups & {"pair", "pair.counts", "pair.wide"}),
        "labels": {o.name for o in manifest.outputs} == {"click", "buy"},
        "wide": bool(run.config.network.wide),
        "counts": bool(run.config.network.counts),
        "processes": getattr(run.trainer, "processes", 1) == 2,
        "new_version": manifest.version == 2,
        "int8": {t.dtype for t in manifest.embeddings if t.dim > 2} == {"int8"},
        "int8_network": manifest.notes.get("compile", {}).get("precision") == "int8",
        "loss": bool(run.config.network.loss),
        "follow": run.config.data.follow,
        "admission": tables["item"].admit_after == 2 if "item" in tables else False,
        "memory": "user" in tables and tables["user"].memory_mb == 1,
        "hashed": any(t.op in ("quotient_remainder", "k_way") for t in manifest.transforms),
        "gate": manifest.notes["gate"]["verdict"] == "passed",
        "guard": run.guard.config.auc_drop == 0.9,
    }


def served(repository, columns):
    with Processor(ProcessorConfig(str(repository), sessions=1)) as processor:
        processor.poll()
        return processor.process(PredictRequest(NAME, columns)).outputs


def check_scores(names, folder, repository):
    """Train under some settings; raise AssertionError unless they are there and served as trained."""
    with finished_run(training_job(names, folder, repository)) as run:
        version = Repository(repository).version(NAME, run.state.version)
        there = shown(run, version)
        assert [name for name in names if not there[name]] == []
        columns = inputs_of(version.manifest, next(run.source.batches(ROWS)))
        replies = served(repository, columns)
        if "int8" in names:
            # Rows as they are published.
            log = ChangeLog.of(version)
            rebuild(run.trainer, VersionContents(version, log, log.history.head))
        trained = np.asarray(run.trainer.score(columns)).reshape(ROWS, -1)
        within = max([1e-5, *(INEXACT[name] for name in names if name in INEXACT)])
        for n, output in enumerate(run.trainer.dense.arch.outputs):
            np.testing.assert_allclose(replies[output].reshape(-1), trained[:, n], atol=within)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "names",
    [
        # One of two that are much alike is long: each takes ten seconds of processor time.
        *(pytest.param(s, marks=pytest.mark.long if {"events", "loss"} <= {*s} else ()) for s in settings_together()),
        ("events", "int8_network"),
        *(pytest.param(s, marks=pytest.mark.long) for s in settings_together(INEXACT)),
    ],
    ids=lambda names: f"{len(names)} {' '.join(names[-3:])}",
)
def test_settings_that_fit_each_other_train_together(names, folder, tmp_path):
    check_scores(names, folder, tmp_path)


@pytest.mark.parametrize("names", REFUSED_LATER, ids=" ".join)
def test_settings_that_do_not_fit_are_refused_before_a_step(names, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingRun, "full", lambda run: pytest.fail("it trains"))
    with pytest.raises(BadInput) as refused, finished_run(training_job(names, folder, tmp_path)):
        pass
    assert str(refused.value).startswith(REFUSED_LATER[names])
    assert "\n" not in str(refused.value)


@pytest.mark.long
@pytest.mark.campaign  # 21 trainings; the sets above have every setting with and without each other
@pytest.mark.parametrize("names", [(name,) for name in SETTINGS], ids=" ".join)
def test_setting_alone_is_served_as_trained(names, folder, tmp_path):
    check_scores(names, folder, tmp_path)


@pytest.mark.long
@pytest.mark.campaign  # ten minutes of processor time, and the sets above have every pair
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in REFUSED | REFUSED_LATER], ids=" ".join)
def test_pair_is_served_as_trained(pair, folder, tmp_path):
    check_scores(pair, folder, tmp_path)
