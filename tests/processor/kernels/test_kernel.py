"""A kernel is compiled for its signature alone, and a process that compiles says so."""

import logging

import numba as nb
import numpy as np
import pytest

from freshet_serving.processor.kernels import kernel as module
from freshet_serving.processor.kernels.code_store import CodeStore
from freshet_serving.processor.kernels.kernel import KernelCode, inlined, kernel


@pytest.fixture
def storeless(monkeypatch):
    """A process that finds no code and can keep none."""
    monkeypatch.setattr(module, "store", CodeStore(None, []))


def test_kernel_takes_its_signature_only(storeless):
    @kernel(nb.int64(nb.int64[::1]))
    def count(numbers):
        return len(numbers)

    assert count(np.arange(3)) == 3
    with pytest.raises(TypeError):
        count(np.arange(3.0))


def test_inlined_function_needs_no_signature(storeless):
    @inlined
    def half(number):
        return number // 2

    @kernel(nb.int64(nb.int64))
    def quarter(number):
        return half(half(number))

    assert quarter(9) == 2


def test_stamp_does_not_depend_on_the_order_of_sets():
    def function():
        pass

    stamps = {
        KernelCode(function, "()", {"fastmath": set(flags)}).stamp for flags in (("nsz", "arcp"), ("arcp", "nsz"))
    }
    assert len(stamps) == 1
    assert KernelCode(function, "()", {"fastmath": {"nsz"}}).stamp not in stamps


def test_compiling_is_logged_once_and_then_every_few_seconds(storeless, monkeypatch, caplog):
    now_s = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    progress = module._Progress()
    with caplog.at_level(logging.WARNING, "freshet.kernels"):
        for step_s in (0.0, 1.0, module.PROGRESS_S, 1.0):
            now_s[0] += step_s
            progress.note("pool")
    assert len(caplog.messages) == 2
    assert "about a minute" in caplog.messages[0]
    assert "NUMBA_CACHE_DIR" in caplog.messages[0]
    assert caplog.messages[1] == "compiling kernels: 2 done, now pool"
