"""Every target of loadtest starts. Short: its module is imported and takes its smallest settings. Long: it runs with
them, or says in one line what it needs from outside."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "loadtest" / "Makefile").read_text()

SMALLEST = {
    "loadtest.bench": "--only soak --quick --minutes 0.05 --table-rows 100 --out OUT",
    "loadtest.bench.bench_features": "--rounds 1 --items 2 --out OUT/features.md",
    "loadtest.bench.bench_top_items": "--rounds 1 --out OUT",
    "loadtest.bench.cold_start": "--python 3.12 --out OUT",
    "loadtest.bench.device_feed": "--rows 100 --rounds 2 --candidates 3 --out OUT",
    "loadtest.bench.foreign_models": "--only nobody",
    "loadtest.bench.training.event_race": "--seeds 1 --events 600 --logs sparse --out OUT",
    "loadtest.bench.training.follow_race": "--data OUT --only folder",
    "loadtest.bench.training.history_race": "--rounds 1 --seconds 0.1 --rows 1000 --batches 64 --data OUT --out OUT",
    "loadtest.bench.training.next_item_logs": "--only sasrec_next --seeds 1 --rows 6000 --logs 'last two items'"
    " --out OUT",
    "loadtest.bench.training.late_labels": "--seeds 1 --out OUT/join",
    "loadtest.bench.training.race": "--rounds 1 --seconds 0.1 --table-rows 1000 --batches 64 --torch= --out OUT",
    "loadtest.bench.training.sequence_quality": "--only din --rows 1000 --data OUT --alone --out OUT",
    "loadtest.peers": "--only nobody --venvs OUT --out OUT",
    "tests.affected": "--campaign 1 --minutes 0",
    "tests.corpus.compare": "HEAD --only nobody --base-python .venv/bin/python",
    "tests.corpus.rebuilt": "nobody",
    "tests.faults.access_siege": "--rounds 1 --out OUT",
    "tests.faults.siege": "--rounds 1 --only metadata --out OUT",
    "tests.faults.source_siege": "--seconds 0.1 --out OUT",
    "tests.fuzz": "--cases 100 --out OUT",
    "tests.gpu bundle": "--rows 10 --buckets 1 --out OUT/bundle",
    "tests.gpu compile": "--only nobody --out OUT/compile.md",
    "loadtest.bench.words": "",
    "tests.programs.canary": "--requests 100 --keys 10 --out OUT",
    "tests.programs.delta_campaign": "--deltas 5 --out OUT/campaign.md",
    "tests.programs.endings": "--rounds 1 --out OUT",
    "tests.programs.object_race": "--deltas 1 --rows 10 --replicas 1 --every 0.1 --out OUT",
    "tests.programs.outage": "--seconds 1 --out OUT",
    "tests.programs.part_rollbacks": "--rollbacks 2 --out OUT/part-rollbacks.md",
    "tests.programs.retrieval_story": "--minutes 0.05 --out OUT",
    "tests.programs.short_of_memory": "--minutes 0.05 --changes 100 --out OUT",
    "tests.programs.state_service": "--rounds 2 --users 300 --budget-mb 16 --asked 50 --minutes 0.05 --out OUT",
    "tests.programs.device_story": "--deltas 8 --out OUT",
    "tests.programs.state_story": "--minutes 0.05 --out OUT",
}
"""Settings of each program that targets run. OUT: an empty folder, where there are no data either."""
REWRITE = {
    "generators.generate_messages",
    "loadtest.reports.figures_page",
    "tests.gpu.fresh_venv",
    "tests.programs.console_shots",
    "tests.programs.costs",
    "tests.programs.covered",
    "tests.programs.snippets",
}
"""Programs without settings, which write files of the repository or an environment: they are imported."""


class Parsed(Exception):
    """The arguments of a program were taken."""


def programs():
    """What targets run: modules, with the verb of tests.gpu."""
    return set(re.findall(r"-m ((?:loadtest|tests|generators)\b[\w.]*(?: (?:bundle|compile))?)", MAKEFILE))


def module_of(program):
    """Import what `python -m` runs."""
    name = program.partition(" ")[0]
    folder = ROOT.joinpath(*name.split("."))
    return importlib.import_module(f"{name}.__main__" if folder.is_dir() else name)


def words(program, out):
    return [*program.split(" ")[1:], *(word.replace("OUT", str(out)) for word in shlex.split(SMALLEST[program]))]


def test_every_program_of_a_target_is_started_here():
    assert programs() == set(SMALLEST) | REWRITE


@pytest.mark.parametrize("program", sorted(REWRITE))
def test_program_without_settings_is_imported(program):
    assert module_of(program).__doc__


@pytest.mark.parametrize("program", sorted(SMALLEST))
def test_program_takes_its_smallest_settings(program, tmp_path, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, *arguments):
        parse(parser, *arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", [program, *words(program, tmp_path)])
    main = module_of(program).main
    takes_words = any(parameter.default is parameter.empty for parameter in signature(main).parameters.values())
    with pytest.raises(Parsed):
        main(*([sys.argv[1:]] if takes_words else []))


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize("program", sorted(SMALLEST))
def test_program_runs_with_its_smallest_settings(program, tmp_path):
    command = [sys.executable, "-m", program.partition(" ")[0], *words(program, tmp_path)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said[-2000:]
    # 1: it ran, and a goal was not met. 2: something is missing, which the last line says.
    assert done.returncode in (0, 1, 2), said[-2000:]
    assert done.returncode != 2 or done.stderr.strip()
