import pytest

from freshet_serving.models.config.retrieval_rules import check_one_process, learns_to_retrieve, tower_keys
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput

FEATURES = {
    "age": {"kind": "id", "side": "user"},
    "user": {"kind": "string", "side": "user"},
    "year": {"kind": "id", "side": "item"},
    "item": {"kind": "id", "side": "item"},
    "tags": {"kind": "ids", "side": "item"},
    "price": {"kind": "float", "side": "item"},
}


def config(arch="two_tower", features=FEATURES, model=None, **sections):
    raw = {
        "model": {"name": "m", "arch": arch, **(model or {})},
        "data": {"path": "rows.parquet", "label": "label"},
        "features": features,
        "publish": {"repository": "r"},
    }
    return parse_config(raw | sections)


def test_two_towers_learn_to_retrieve_unless_the_file_asks_for_labels():
    assert learns_to_retrieve(config().model)
    assert config().network.towers == ("age", "year")
    for model in ({"loss": "log_loss"}, {"loss": "package.module:loss"}):
        assert not learns_to_retrieve(config(model=model).model)
        assert config(model=model).network.towers is None
    assert not learns_to_retrieve(config("deepfm").model)


def test_log_loss_is_the_default_by_name_of_every_other_network():
    assert config("deepfm", model={"loss": "log_loss"}).model.loss == ""


def test_first_id_or_key_of_an_entity_tells_users_and_items_apart():
    only = {name: FEATURES[name] for name in ("price", "tags", "item", "age")}
    assert tower_keys(config(features=only).features, []) == ("age", "item")
    entity = {"key": "item", "path": "items.parquet", "columns": ["year"]}
    whole = config(entities={"shop": entity})
    assert tower_keys(whole.features, whole.entities) == ("age", "item")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"features": {k: v for k, v in FEATURES.items() if k not in ("item", "year")}}, "features: expected an id or"),
        (
            {"features": FEATURES | {"both": {"kind": "id", "cross": ["user", "item"], "side": "item"}}},
            "features.both.cross: expected features of side 'item' alone in one of that side for two_tower",
        ),
        ({"tables": {"year": {"hash": "k_way", "hash_rows": 10}}}, "tables.year.hash: expected none for two_tower"),
        ({"tables": {"tags": {"memory_mb": 1}}}, "tables.tags.memory_mb: expected 0 for two_tower"),
        ({"train": {"batch_rows": 9000}}, "train.batch_rows"),
        ({"train": {"stop_by": "auc", "patience": 1, "epochs": 3}}, "train.stop_by: expected nothing for two_tower"),
        ({"guard": {"auc_drop": 0.1}}, "guard.auc_drop: expected nothing for two_tower"),
        ({"evaluate": {"by": ["age"]}}, "evaluate.by: expected nothing for two_tower"),
        ({"publish": {"repository": "r", "gate": {"loss_rise": 0.5}}}, "publish.gate.loss_rise: expected nothing"),
    ],
)
def test_what_retrieval_cannot_do_is_refused_by_name(sections, message):
    with pytest.raises(BadInput) as error:
        config(**sections)
    assert message in str(error.value)
    # All of it is possible with the loss of labels.
    features = sections.pop("features", FEATURES)
    config(features=features, model={"loss": "log_loss"}, **sections)


def test_several_processes_are_refused():
    check_one_process(config().model, 1)
    check_one_process(config(model={"loss": "log_loss"}).model, 2)
    with pytest.raises(BadInput, match=r"--processes: expected 1 for two_tower, .*got '2'"):
        check_one_process(config().model, 2)
