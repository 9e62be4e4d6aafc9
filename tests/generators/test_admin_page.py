from generators.admin_page import page


def test_routes_fields_and_statuses_are_described():
    text = page()
    assert "| 409 | The change conflicts with the current state" in text
    assert "## POST /admin/models/{name}/rollback" in text
    assert "| `path` | string | Path of a delta file inside the repository. Required. |" in text
