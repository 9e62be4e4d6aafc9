"""Signed envelope of the files that a repository keeps beside its versions and replaces: labels and traffic.

Without keys the document is the file. With a key, the signature covers the model, the file's name, a serial number that
grows with every change, and the document: neither another model's document nor an older one is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.repository.keyring import Keyring

FORMAT = "freshet-envelope/1"
KEYS = {"format", "model", "file", "serial", "document", "key", "signature"}


def wrap_envelope(
    document: dict[str, Any], before: Mapping[str, Any], model: str, file: str, keyring: Keyring
) -> dict[str, Any]:
    """Return what to write in place of the content `before`, in an envelope if it must be signed.

    Raises SigningKeyRequired if it must be signed and there is no key.
    """
    sealed = before.get("format") == FORMAT
    signer = keyring.key_for(file.partition(".")[0], str(before.get("key", ""))[:16] if sealed else "")
    if signer is None:
        return document
    serial = before.get("serial") if sealed else 0
    trusted = keyring.memory.of(model).serials.get(file, 0) if keyring.memory else 0
    fields = {
        "format": FORMAT,
        "model": model,
        "file": file,
        "serial": max(serial if type(serial) is int and serial < 10**15 else 0, trusted) + 1,
        "document": document,
        "key": signer.id,
    }
    return {**fields, "signature": signer.sign(_bytes(fields))}


def opened(raw: dict[str, Any], model: str, file: str, keyring: Keyring) -> dict[str, Any]:
    """Return the document of a file's content; raise Corrupt if it is not trusted, or older than a trusted one."""
    if raw.get("format") != FORMAT:
        if raw:
            keyring.check_signature(file, "", "", b"")
        return raw
    fits = raw.keys() == KEYS and isinstance(raw["document"], dict) and type(raw["serial"]) is int
    if not fits or (raw["model"], raw["file"]) != (model, file):
        raise Corrupt(f"{file}: expected an envelope of this model and file")
    fields = {key: value for key, value in raw.items() if key != "signature"}
    keyring.check_signature(file, str(raw["key"]), str(raw["signature"]), _bytes(fields))
    if keyring.memory is not None:
        keyring.memory.check_serial(model, file, raw["serial"])
        keyring.memory.note_serial(model, file, raw["serial"])
    return dict(raw["document"])


def _bytes(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
