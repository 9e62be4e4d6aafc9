"""Names of modules, in their path and in an import. Nothing of the product is imported here."""

PREFIX = "freshet_serving"
FLOORS = (PREFIX, "serving", "models", "compiler", "processor", "loadtest")
LINKED = frozenset({"serving", "models", "compiler", "processor"})
"""Top folders that are imported as subpackages of PREFIX, by links in its folder."""


def own_name(name: str) -> str:
    """Return a dotted name without the prefix that the top folders may be imported under."""
    head, _, rest = name.partition(".")
    return rest if head == PREFIX and rest.partition(".")[0] in FLOORS[1:] else name


def import_name(name: str) -> str:
    """Return what a module of a top folder is imported as: own_name() the other way round."""
    return f"{PREFIX}.{name}" if name.partition(".")[0] in LINKED else name
