"""The functions of freshet.h, in Python.

Invariants
- Statuses are HTTP's: 200 with a reply, else with a message that any client may see. Nothing is raised into C.
- A thread of its own polls for each model until it is closed; process() may be called from any number of threads.
- The number of a closed model is never reused, so that a caller that mixes up numbers gets an error and does no harm.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import threading
from typing import Any

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound, option_hint
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.options import check
from freshet_serving.processor.versions.changes import report
from freshet_serving.processor.versions.host import REST_S

log = logging.getLogger("freshet.capi")

MAX_CONFIG_NBYTES = 1 << 20
POLL_INTERVAL_S = 0.05
# Allowed types by key.
OPTIONS: dict[str, tuple[type, ...]] = {
    "repository": (str,),
    "model": (str,),
    "sessions": (int,),
    "threads": (int,),
    "poll_interval_s": (int, float),
}
LIMITS = ("max_rows", "max_ids", "max_cells", "max_body_bytes")
OPTIONS |= dict.fromkeys(LIMITS, (int,))
INTERNAL = 500, b"internal error; see the log"


class EmbeddedModel:
    def __init__(self, config: bytes) -> None:
        """Load the model and start polling. config: JSON as freshet.h describes it. Raises FreshetError."""
        options = _options(config)
        interval_s = float(options.pop("poll_interval_s", POLL_INTERVAL_S))
        if not 0 < interval_s <= 3600:
            raise BadInput(f"poll_interval_s: expected more than 0, at most 3600, got {interval_s:g}")
        model = options.pop("model", None)
        limits = RequestLimits(**{name: options.pop(name) for name in LIMITS if name in options})
        check(limits, "model_config.")
        models = None if model is None else [model]
        self._processor = Processor.initialize(ProcessorConfig(models=models, limits=limits, **options))
        self._model = model
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, args=(interval_s,), name="freshet-poller", daemon=True)
        self._poller.start()

    def process(self, data: bytes) -> bytes:
        """Return a PredictResponse for a PredictRequest (processor.extensions.deeprec); raises FreshetError."""
        return self._processor.process(data, self._model)

    def info(self) -> bytes:
        """Return versions, generation, freshness and memory of what is served, as JSON."""
        return json.dumps(self._processor.info()).encode()

    def close(self) -> None:
        self._closing.set()
        self._poller.join()
        self._processor.close()

    def _poll(self, interval_s: float) -> None:
        delay_s = interval_s
        while not self._closing.wait(delay_s):
            delay_s = interval_s
            try:
                report(log, self._processor.poll())
            except Exception:
                # Poll less often, so that a lasting error does not flood the log.
                delay_s = max(interval_s, REST_S)
                log.exception("polling the repository failed; retrying in %g s", delay_s)


_numbers = itertools.count(1)
_open: dict[int, EmbeddedModel] = {}


def initialize(config: bytes) -> tuple[int, bytes]:
    """Load a model; returns a number above 0 and no message, or 0 and the error."""
    try:
        embedded = EmbeddedModel(config)
    except FreshetError as error:
        return 0, str(error).encode(errors="replace")
    except Exception:
        log.exception("cannot initialise the processor")
        return 0, b"cannot initialise the processor; see the log"
    number = next(_numbers)
    _open[number] = embedded
    return number, b""


def process(number: int, data: bytes) -> tuple[int, bytes]:
    """Answer a request; returns an HTTP status, and the reply or the error."""
    return _answered(number, lambda embedded: embedded.process(data))


def info(number: int) -> tuple[int, bytes]:
    """Return an HTTP status, and the model's info as JSON or the error."""
    return _answered(number, EmbeddedModel.info)


def close(number: int) -> None:
    with contextlib.suppress(KeyError):
        _open.pop(number).close()


def _answered(number: int, act: Any) -> tuple[int, bytes]:
    try:
        embedded = _open.get(number)
        if embedded is None:
            raise NotFound("model: not initialised or already closed")
        return 200, act(embedded)
    except FreshetError as error:
        return error.http_status, str(error).encode(errors="replace")
    except Exception:
        log.exception("a request failed with an internal error")
        return INTERNAL


def _options(config: bytes) -> dict[str, Any]:
    if len(config) > MAX_CONFIG_NBYTES:
        raise BadInput(f"model_config: expected at most {MAX_CONFIG_NBYTES} bytes, got {len(config)}")
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        raise BadInput("model_config: expected JSON") from None
    if not isinstance(document, dict) or "repository" not in document:
        raise BadInput("model_config: expected an object with a repository")
    for name, value in document.items():
        types = OPTIONS.get(name)
        if types is None:
            raise BadInput(
                f"model_config: expected one of {', '.join(OPTIONS)}, got {name[:64]!r}{option_hint(name, OPTIONS)}"
            )
        if type(value) not in types:
            raise BadInput(f"model_config.{name}: expected {types[0].__name__}, got {type(value).__name__}")
    return document
