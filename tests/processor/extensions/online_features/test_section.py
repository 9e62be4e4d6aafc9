"""Groups of online features in a manifest: kept to the bit, and refused by name where they do not fit."""

import json
from dataclasses import replace

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.section import ONLINE, ONLINE_FEATURES, groups_of
from freshet_serving.processor.package import UNREAD, InputFiller, Manifest, validate
from tests.support import packages
from tests.support.looked_up import FILLED, HASHES, manifest


def plain(section=HASHES):
    return replace(manifest(section=section), executables=[])


def test_group_fills_inputs_and_unread_key_may_be_absent():
    filled = {name: InputFiller(ONLINE, "user", ("user_id",)) for name in FILLED}
    assert manifest().fillers == filled | {"user_id": InputFiller(UNREAD, "", ())}


def test_a_key_that_the_model_reads_has_to_be_sent():
    by_item = manifest(section=HASHES | {"key": "user"})
    assert set(by_item.fillers) == set(FILLED)


def test_file_holds_groups_only_if_there_are_some():
    made = plain()
    read = Manifest.from_json(made.to_json())
    assert read.sections == made.sections == {ONLINE_FEATURES: groups_of(made)}
    assert read.fillers == made.fillers
    assert b"online_features" not in replace(packages.manifest(), executables=[]).to_json()
    assert b"fillers" not in made.to_json()
    assert b"sections" not in made.to_json()


def test_groups_lie_where_their_field_was_in_signed_files():
    made = plain()
    keys = list(json.loads(replace(made, key="0" * 16, files={}, stage=None).to_json()))
    assert keys[keys.index(ONLINE_FEATURES) + 1 :] == ["key", "signature", "edition", "vouched"]
    assert Manifest.from_json(made.to_json()).to_json() == made.to_json()


def test_section_without_groups_is_none():
    bare = replace(packages.manifest(), executables=[])
    assert replace(bare, sections={ONLINE_FEATURES: []}).to_json() == bare.to_json()
    document = json.loads(bare.to_json()) | {ONLINE_FEATURES: []}
    assert Manifest.from_json(json.dumps(document).encode()).sections == {}


def test_package_without_the_extension_is_refused_by_name(without_extensions):
    data, made = plain().to_json(), plain()
    without_extensions("online_features")
    with pytest.raises(BadInput, match=r"key 'online_features'.* needs the extension 'online_features'.* leaves it"):
        Manifest.from_json(data)
    with pytest.raises(BadInput, match=r"manifest\.online_features needs the extension 'online_features'"):
        made.to_json()


def test_only_the_inputs_that_nobody_fills_are_expected():
    assert [i.name for i in manifest().expected_inputs(())] == ["user", "f2", "f3"]
    assert [i.name for i in manifest().expected_inputs({"f0"})] == ["user", "f0", "f2", "f3"]
    assert packages.manifest().expected_inputs(()) == packages.manifest().inputs


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (HASHES | {"key": "user_ids"}, r"online_features\[user\]: the key 'user_ids' is not among manifest.inputs"),
        (HASHES | {"key": "f2"}, r"the key 'f2': expected one int64 a row, which has one value of float32"),
        (HASHES | {"key": "f0"}, r"the key 'f0' is filled by a feature itself"),
        (HASHES | {"names": {"f1": "f9"}}, r"the input 'f9' is not among manifest.inputs"),
        (HASHES | {"names": {"tags": "f2"}}, r"type string_list does not fill the input 'f2', which has one value"),
        (
            HASHES | {"names": {"f0": "user"}},
            r"type double does not fill the input 'user', which has one value of int64",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_name(section, message):
    made = plain(section)
    with pytest.raises(BadInput, match=message):
        validate(made)


def test_two_groups_share_no_input_and_no_name():
    groups = [parse_group("user", HASHES), parse_group("other", HASHES)]
    with pytest.raises(BadInput, match=r"online_features\[user\]: the input 'tags' is filled by two features"):
        validate(replace(plain(), sections={ONLINE_FEATURES: groups}))
    with pytest.raises(BadInput, match=r"online_features\[user\]: expected every name once"):
        validate(replace(plain(), sections={ONLINE_FEATURES: groups[:1] * 2}))
