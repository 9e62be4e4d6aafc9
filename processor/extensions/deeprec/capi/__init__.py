"""DeepRec Processor's C interface: a shared library with Python and this engine inside, for callers that are neither.

    python -m freshet_serving.processor.capi libfreshet.so      # and freshet.h beside it; needs cffi and a C compiler

freshet.h documents each function. example.c and example.go, beside this file, are callers.

library   builds the shared library
embedded  implements the functions of freshet.h in Python
"""

__all__ = ["library"]
