import json
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.package.delta import Delta, TableDelta, write_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.repository.version_writer import VersionWriter
from freshet_serving.serving.commands import inspection
from tests.serving.commands.running import run
from tests.support.packages import write_package
from tests.support.ranked import write_ranked


@pytest.fixture
def repository(tmp_path):
    """A model `ctr` with versions 1 and 3, and two deltas of version 3, the second of them broken."""
    manifest = Manifest(
        "ctr",
        1,
        "deepfm",
        1.7e9,
        [Input("user", "int64"), Input("tags", "string", ragged=True), Input("packed", "float32", 2)],
        [
            Feature("user", "id", "user", table="user", width=4),
            Feature("tags", "strings", "tags", table="user", offset=4, width=4),
            Feature("a", "float", "packed", 0, offset=8),
            Feature("b", "float", "packed", 1, offset=9),
        ],
        [TableEntry("user", 4, 10)],
        [Output("score", 1)],
        10,
        {},
        {},
    )
    for version in (1, 3):
        with VersionWriter(tmp_path, "ctr", version) as writer:
            writer.tensors("dense.safetensors", {"x": np.zeros(3, np.float32)})
            writer.commit(replace(manifest, version=version))
    keys = np.arange(5, dtype=np.int64)
    changes = TableDelta(keys, np.ones((5, 4), np.float32), np.array([9], np.int64))
    deltas = tmp_path / "ctr" / "3" / "deltas"
    write_delta(deltas / "1.safetensors", Delta("ctr", 3, 1, 0, {"user": changes}, published_at=1.7e9, events=2000))
    (deltas / "2.safetensors").write_bytes(b"broken")
    return tmp_path


def test_tables_in_piped_output_are_not_wrapped(repository, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    inspection.describe_deltas(str(repository), "ctr", None)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if " 3.1 " in line)
    assert "no record yet" in row


def test_inspect_describes_the_newest_version(repository):
    text = run("inspect", "--repository", str(repository), "--verify")
    assert "ctr version 3 of 1, 3" in text
    assert "tags: string [n, any]" in text
    assert "packed: float32 [n, 2]" in text
    assert "user: 10 rows of 4 float32" in text
    assert "no records; 2 delta files without a record" in text
    assert "every file matches its checksum" in text


def test_inspect_says_that_a_version_ranks_items(tmp_path):
    write_ranked(tmp_path)
    text = run("inspect", "--repository", str(tmp_path))
    assert "user_vector by the rows of item, without those of history.item; 10 bytes a row beside them" in text


def test_inspect_accepts_a_model_and_a_version(repository):
    assert "ctr version 1" in run("inspect", "--repository", str(repository), "ctr", "--version", "1")
    with pytest.raises(NotFound, match="'ctr' version 2 is not in the repository"):
        run("inspect", "--repository", str(repository), "ctr", "--version", "2")


def test_empty_repository_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no model"):
        run("inspect", "--repository", str(tmp_path))


def test_unreadable_model_is_named_after_the_others(tmp_path, capfd):
    write_package(tmp_path, model="good")
    (write_package(tmp_path, model="bad") / "model.json").write_text("[")
    with pytest.raises(BadInput, match=r"^bad: manifest: not valid JSON$"):
        inspection.describe_repository(str(tmp_path), None, None, False)
    assert "good version 1" in capfd.readouterr().out


def test_deltas_are_listed_and_a_broken_one_is_named(repository):
    text = run("delta", "list", "--repository", str(repository), "ctr")
    assert "2,000" in text
    assert "3.1" in text
    assert "3.2" in text
    assert "2023-11-14" in text


def test_delta_dates_are_complete_in_a_narrow_terminal(repository):
    text = run("delta", "list", "--repository", str(repository), "ctr", columns=80)
    assert "2023-11-14 22:13:20" in text
    assert max(map(len, text.splitlines())) <= 80


def test_inspect_lists_choices_as_text_and_json(tmp_path):
    write_package(tmp_path, model="small")
    text = run("inspect", "--repository", str(tmp_path))
    choices = text.partition("  choices\n")[2]
    assert choices.startswith("    executable of score of ")
    assert "onnxruntime not measured (the only one compiled" in choices
    (small,) = json.loads(run("inspect", "--repository", str(tmp_path), "--json")).values()
    assert (small["version"], small["versions"]) == (1, [1])
    assert {choice["name"] for choice in small["choices"]} >= {"executable of score", "precision", "device"}
    assert all(set(choice["cost_us"].values()) == {None} for choice in small["choices"])


def test_json_is_refused_beside_other_descriptions(tmp_path):
    with pytest.raises(BadInput, match=r"--json: expected no --tables"):
        run("inspect", "--repository", str(tmp_path), "--json", "--verify")
