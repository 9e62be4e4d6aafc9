"""Files of keys for tests: who they name, and the headers that bring a key."""

from freshet_serving.serving.access.key_file import RateLimits, changing
from freshet_serving.serving.access.scopes import SCOPES

NO_LIMITS = RateLimits()


class Keyed:
    """A file of keys in a folder, with a key of each scope, named as it is, and one of them all."""

    def __init__(self, folder, limits=NO_LIMITS):
        self.path, self.secrets = folder / "api-keys.toml", {}
        for scope in SCOPES:
            self.add(scope.replace(":", "-"), [scope], limits)
        self.add("all", SCOPES, limits)

    def add(self, name, scopes, limits=NO_LIMITS):
        """Adds a key; returns the headers that bring it."""
        with changing(self.path) as held:
            held[0], self.secrets[name] = held[0].added(name, scopes, limits=limits)
        return self.headers(name)

    def revoke(self, name):
        with changing(self.path) as held:
            held[0] = held[0].without(name)

    def headers(self, name):
        return {"authorization": f"Bearer {self.secrets[name]}"}
