"""DeepRec Processor's C interface: a shared library with Python and this engine inside, for callers that are neither.

    python -m freshet_serving.processor.capi libfreshet.so      # and freshet.h beside it; needs cffi and a C compiler

freshet.h says what each function does. example.c and example.go, beside this file, are callers.

embedded  what the functions of freshet.h do, in Python
"""

__all__: list[str] = []
