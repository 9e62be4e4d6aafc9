"""Refuse a JSON document whose values do not fit in memory, before orjson parses it.

orjson checks that its first buffer was allocated and then creates objects without a check: where the operating system
refuses it memory (RLIMIT_DATA, RLIMIT_AS, strict overcommit), the process dies of SIGSEGV and takes every request of
the worker with it. So as much address space as the document can take is asked for and given back first. No page of it
is touched, so a memory limit of a container is neither needed nor spent, and a document that fits costs two system
calls.

Parsing holds the GIL, and so does everything here between giving the space back and the call of orjson, so two threads
do not count on the same space. A thread that computes without the GIL may still take it in between; what is asked for
exceeds what documents were measured to take by a fifth or more.
"""

from __future__ import annotations

import mmap

import numpy as np

from freshet_serving.processor.errors import NO_MEMORY, NotReady
from freshet_serving.processor.kernels.json_text import count_nodes

FREE_NBYTES = 1 << 16
"""Documents up to this length are parsed without a check: they take at most 4 MiB."""

# orjson's first buffer takes 12 bytes for each byte of text, its objects at most 49 beyond that (`[[[[]]]],` again and
# again), measured with orjson 3.13 on documents of 4 MB.
MOST_PER_BYTE = 64
# By weight of count_nodes: a float with its slot in a list takes 32 bytes and weighs 1, a string 57 and weighs 2, an
# object with one name 197 and weighs 6. Strings take up to 4 bytes for each of their characters.
BUFFER_PER_BYTE, MOST_PER_NODE, TEXT_PER_BYTE = 12, 48, 4


def check_memory(body: bytes | memoryview) -> None:
    """Raise NotReady if there is not enough memory to parse a JSON document.

    Args:
        body: The JSON text.

    Raises:
        NotReady: The operating system refuses as much memory as the document can take.
    """
    if len(body) <= FREE_NBYTES or _is_free(MOST_PER_BYTE * len(body)):
        return
    # Counted only here: the count takes a tenth of the time in which orjson parses.
    nodes = int(count_nodes(np.frombuffer(body, np.uint8)))
    if not _is_free(nbytes_of(nodes, len(body))):
        raise NotReady(NO_MEMORY)


def nbytes_of(nodes: int, length: int) -> int:
    """Return the most memory that parsing a document takes, in bytes.

    Args:
        nodes: Its weight, of count_nodes.
        length: Its length in bytes.
    """
    return MOST_PER_NODE * nodes + (BUFFER_PER_BYTE + TEXT_PER_BYTE) * length


def _is_free(nbytes: int) -> bool:
    try:
        # Private, because RLIMIT_DATA counts no shared memory.
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True
