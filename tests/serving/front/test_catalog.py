import dataclasses
import json

from freshet_serving.processor.package.manifest_entries import TableEntry
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.serving.front import catalog
from tests.serving.fakes import FLAT, PACKED, RAGGED


def test_metadata_lists_a_ragged_input_as_two_tensors():
    document = catalog.model_metadata(RAGGED, "ctr", [3, 4])
    assert document["versions"] == ["3", "4"]
    assert {"name": "seen.row_splits", "datatype": "INT64", "shape": [-1]} in document["inputs"]
    assert document["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1, 1]}]


def test_model_config_is_batched_when_rows_come_first():
    assert catalog.model_config(PACKED, "m")["input"] == [
        {"name": "ids", "data_type": "TYPE_INT64", "dims": [3]},
        {"name": "floats", "data_type": "TYPE_FP32", "dims": [2]},
    ]
    assert catalog.model_config(PACKED, "m")["max_batch_size"] == catalog.MAX_BATCH_ROWS
    for manifest in (FLAT, RAGGED):
        config = catalog.model_config(manifest, "m")
        assert config["max_batch_size"] == 0
        assert all(tensor["dims"][0] == -1 for tensor in config["input"] + config["output"])


def test_status_writes_the_version_as_a_string():
    document = catalog.version_status([VersionStatus(3, "AVAILABLE"), VersionStatus(4, "END", "broken")])
    assert document["model_version_status"] == [
        {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        {"version": "4", "state": "END", "status": {"error_code": "UNKNOWN", "error_message": "broken"}},
    ]


def test_signature_names_its_tensors_as_the_model_does():
    signature = catalog.signatures(RAGGED)["signature_def"]["serving_default"]
    assert signature["inputs"]["tags"]["dtype"] == "DT_STRING"
    assert [d["size"] for d in signature["inputs"]["seen"]["tensor_shape"]["dim"]] == ["-1", "-1"]
    assert signature["outputs"]["score"]["dtype"] == "DT_FLOAT"


def test_repository_index_gives_state_and_reason_per_version():
    known = [VersionStatus(5, "LOADING"), VersionStatus(4, "END", "broken"), VersionStatus(3, "AVAILABLE")]
    index = catalog.repository_index([("ctr", [*known, VersionStatus(2, "END")])], ready=False)
    assert [(i["version"], i["state"], i["reason"]) for i in index] == [
        ("5", "LOADING", ""),
        ("4", "UNAVAILABLE", "broken"),
        ("3", "READY", ""),
        ("2", "UNAVAILABLE", "unloaded"),
    ]
    assert [i["version"] for i in catalog.repository_index([("ctr", known)], ready=True)] == ["3"]


def test_data_port_documents_never_reveal_the_hash_seed():
    seed = 0x1234567890ABCDEF
    manifest = dataclasses.replace(RAGGED, tables=[TableEntry("tags", 4, 0, hash_seed=seed)])
    documents = [
        catalog.model_metadata(manifest, "ctr", [3]),
        catalog.model_config(manifest, "ctr"),
        catalog.signatures(manifest),
    ]
    assert str(seed) not in json.dumps(documents)
    assert "seed" not in json.dumps(documents)
