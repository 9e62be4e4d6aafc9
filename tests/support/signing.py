"""Keys for tests, made once a process, and repositories that are signed by them."""

from functools import cache
from pathlib import Path

from freshet_serving.processor.package.signature import Signer
from freshet_serving.processor.repository import Keyring, Repository, TrustMemory
from freshet_serving.processor.repository.log.change_log import ChangeLog
from tests.support.packages import make_delta


@cache
def signer(name="first"):
    """A key; every name is another one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Signer(Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b".")))


def writes(name="first", trusts=()):
    """The keyring of a trainer."""
    return Keyring(signer(name), {signer(trusted).id: signer(trusted).public for trusted in {name, *trusts}})


def reads(*names, memory=None):
    """The keyring of a server that writes nothing. memory: the folder of what it has trusted."""
    trusted = {signer(name).id: signer(name).public for name in names or ("first",)}
    return Keyring(None, trusted, TrustMemory(Path(memory)) if memory else None)


def signed_delta(root, step, users=(0,), keyring=None, parent=None, **changes):
    """A delta as a trainer publishes it, signed."""
    version = Repository(root).with_keys(keyring or writes()).version("small", 1)
    return ChangeLog.of(version).publish(make_delta(step, users, parent=parent, **changes))
