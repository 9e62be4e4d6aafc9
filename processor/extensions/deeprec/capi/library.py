"""Build the shared library. cffi provides the interpreter's start and thread locking; the rest is embedded.py."""

from __future__ import annotations

import argparse
import re
import shutil
import site
import sys
import tempfile
from pathlib import Path

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import needed

HERE = Path(__file__).parent
MODULE = "_freshet_capi"
# Runs inside the library, once, before the first call. The paths are this interpreter's, so a library is for one
# machine.
STARTED = """
import site, sys
# Before those of the system: Debian's Python has packages of its own.
sys.path[:0] = {paths!r}
for path in {paths!r}:
    site.addsitedir(path)

from concurrent.futures import ThreadPoolExecutor
from {module} import ffi, lib
from freshet_serving.processor.extensions.deeprec.capi import embedded

MOST_AT_ONCE = 64
pool = ThreadPoolExecutor(MOST_AT_ONCE, "freshet-capi")


def put(result, output_data, output_size):
    status, data = result
    output_size[0] = len(data)
    output_data[0] = lib.malloc(max(1, len(data)))
    if output_data[0] == ffi.NULL:
        output_size[0] = 0
        return 500
    ffi.memmove(output_data[0], data, len(data))
    return status


def answer(model, data):
    number = int(ffi.cast("intptr_t", model))
    return embedded.process(number, data) if data else embedded.info(number)


@ffi.def_extern(error=ffi.NULL)
def initialize(model_entry, model_config, state):
    number, message = embedded.initialize(b"" if model_config == ffi.NULL else ffi.string(model_config))
    state[0] = 0 if number else -1
    if not number:
        print("freshet:", message.decode(), file=sys.stderr, flush=True)
    return ffi.cast("void *", number)


@ffi.def_extern(error=500)
def process(model, input_data, input_size, output_data, output_size):
    data = ffi.buffer(input_data, input_size)[:] if input_size > 0 else b""
    return put(answer(model, data), output_data, output_size)


@ffi.def_extern(error=500)
def batch_process(model, input_data, input_size, output_data, output_size):
    return process(model, input_data[0], input_size[0], output_data, output_size)


@ffi.def_extern()
def batch_process_n(model, count, input_data, input_size, output_data, output_size, status):
    requests = [ffi.buffer(input_data[i], input_size[i])[:] if input_size[i] > 0 else b"" for i in range(count)]
    for i, result in enumerate(pool.map(lambda data: answer(model, data), requests)):
        status[i] = put(result, output_data + i, output_size + i)


@ffi.def_extern(error=500)
def get_serving_model_info(model, output_data, output_size):
    return put(answer(model, b""), output_data, output_size)


@ffi.def_extern()
def freshet_close(model):
    embedded.close(int(ffi.cast("intptr_t", model)))
"""


def build(out: Path) -> None:
    """Write the library, and freshet.h beside it. Raises the errors of cffi and of the compiler."""
    import cffi

    header = (HERE / "freshet.h").read_text()
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    functions = code.partition('extern "C" {\n#endif')[2].partition("#ifdef")[0]
    paths = [*site.getsitepackages(), str(HERE.parents[3])]
    with tempfile.TemporaryDirectory(prefix="freshet-capi-") as folder:
        ffi = cffi.FFI()
        ffi.embedding_api(functions)
        ffi.cdef("void *malloc(size_t size);")
        ffi.set_source(MODULE, "#include <stdlib.h>")
        ffi.embedding_init_code(STARTED.format(paths=paths, module=MODULE))
        library = ffi.compile(tmpdir=folder, target="libfreshet.*")
        shutil.copy(library, out)
    shutil.copy(HERE / "freshet.h", out.with_name("freshet.h"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m freshet_serving.processor.capi", description=__doc__)
    parser.add_argument("out", type=Path, help="file to write, such as libfreshet.so")
    out = parser.parse_args().out.resolve()
    try:
        with needed("the C interface"):
            build(out)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    print(out)
    return 0
