import pytest

from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput


def parsed(evaluate=None, train=None, **features):
    raw = {"model": {"name": "m"}, "data": {"path": "x.parquet", "label": "clicked"}, "features": features}
    raw |= {"evaluate": evaluate} if evaluate is not None else {}
    raw |= {"train": train} if train is not None else {}
    return parse_config(raw)


USER, PRICE = {"kind": "string", "side": "user"}, {"kind": "float", "side": "user"}
FOLLOWED = {"kind": "ids", "side": "user"}


def test_auc_is_grouped_by_the_first_user_id_by_default():
    assert parsed(price=PRICE, followed=FOLLOWED, user=USER, other=USER).evaluate == EvaluateConfig((), "user")
    assert parsed(price=PRICE, item={"kind": "id"}).evaluate == EvaluateConfig()
    given = {"group": "session", "by": ["channel", "user"]}
    assert parsed(given, user=USER).evaluate == EvaluateConfig(("channel", "user"), "session")


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"by": "channel"}, r"evaluate\.by: expected a list of strings, got a string"),
        ({"by": [1]}, r"evaluate\.by\[0\]: expected a string, got an integer"),
        ({"by": ["a", "a"]}, r"evaluate\.by\[1\]: expected each column once, got 'a'"),
        ({"by": [""]}, r"evaluate\.by\[0\]: expected a column"),
        ({"group": ""}, r"evaluate\.group: expected a column"),
        ({"group": "followed"}, r"evaluate\.group: expected a column of one value a row, got 'followed' of lists"),
        ({"top": 0}, r"evaluate\.top: expected"),
        ({"grup": "x"}, r"evaluate\.grup: unknown key; expected one of by, group, top \(did you mean 'group'\?\)"),
    ],
)
def test_mistake_gives_a_one_line_error(evaluate, message):
    with pytest.raises(BadInput, match=message):
        parsed(evaluate, user=USER, followed=FOLLOWED)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"schedule": "cosin"}, r"train\.schedule: expected one of constant, linear, cosine, exponential.*'cosine'"),
        ({"schedule_end": 0.5}, r"train\.schedule_end: only with train\.schedule linear, cosine, exponential"),
        ({"schedule": "linear", "schedule_end": 0.0}, r"train\.schedule_end: expected 1e-06 to 1, got 0\.0"),
        ({"warmup_steps": -1}, r"train\.warmup_steps: expected 0 to"),
        ({"dense_clip_norm": float("nan")}, r"train\.dense_clip_norm: expected 0 to"),
        ({"patience": 1}, r"train\.patience: expected 0 while train\.epochs is 1"),
        ({"patience": 1, "epochs": 3, "holdout": 0.0}, r"train\.patience: expected 0 while train\.holdout is 0"),
        ({"patience": 1, "epochs": 3, "stop_by": "loss"}, r"train\.stop_by: expected one of auc, log_loss"),
        ({"stop_by": "auc"}, r"train\.stop_by: only with train\.patience"),
    ],
)
def test_invalid_evaluation_settings_give_a_one_line_error(train, message):
    with pytest.raises(BadInput, match=message):
        parsed(train=train, user=USER)
