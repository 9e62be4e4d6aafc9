from freshet_serving.processor.package import DEFAULT, NOT_GIVEN, UNKNOWN, EntityEntry


def test_table_of_an_entity_is_named_after_it():
    assert EntityEntry("item", "item_id", ["price"]).table == "entities.item"


def test_entity_holds_no_texts_and_defaults_unless_told():
    entity = EntityEntry("item", "item_id", ["price"])
    assert (entity.unknown, entity.text_nbytes, entity.capacities) == (DEFAULT, NOT_GIVEN, {})
    assert entity.unknown in UNKNOWN
