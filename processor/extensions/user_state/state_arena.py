"""The arena of user states: memory that all processes of a server map, and the kernels that read and write it.

arena      int64: HEADER words, then one segment for each process
header     ERASURES, a number that each erasure replaces; SECRET, the key that names are made with (state_names)
segment    int64: HEAD words, entries [E, ENTRY], links [P], pages [P, PAGE]

    head      SEQUENCE, the newest sequence number; USED, the number of pages that ever were in use, the first ones;
              UNFINISHED, 1 while somebody writes to the segment
    entry     SEQ            sequence number of the state that is here, 0 for none
              HIGH, LOW      its name
              OWNER, SUBJECT whose it is, to be erased by
              WRITTEN_MS     when it was written, on the machine's monotonic clock
              WEIGHTS        the mark of the dense weights
              FLIP, STEP     the flip and the step that it was computed under
              STAMPS, WORDS  how many of its words are stamps of rows, and how many it has
              FIRST          its first page; links lead from each page to the next
              SUM            a checksum of all of the above and of its words, in order
              TOUCHED        1 if it was read since the eviction last came by
    pages     its words: stamps of the rows that it was computed from, then tensors

A name may be in two sets of WAYS entries of a segment, found from LOW and from HIGH. It goes to the set with more free
entries, so that three of four entries are in use before the first state has no place. A page is small, as users are:
one with 20 events takes one page, 648 bytes with a link and an entry. Pages that follow each other are read as one.

Who may write which word
- A segment is written by the holder of its lock alone (arena_locks), in any process. Its own process makes states, and
  knows what is free in private memory (`counts` to `books` below), which a process that takes over finds out from the
  entries. Others erase: they write zeros alone, into whole entries and all pages of these, and its own process learns
  later that they are free.
- TOUCHED may be written by anybody; it decides nothing but what is evicted.
- So what a holder has found in an entry is true until it lets go.

What must never be observed
- Half a state. A writer takes SEQ away before it touches an entry or a page that a reader could reach, and stores a new
  SEQ, never used before, as a full barrier, when all else is there. A reader has no lock: it copies, checks that SEQ is
  still the same, and believes the copy only if the sum agrees. So what was written meanwhile, and what a writer left
  that died at any instruction, are misses.
- Bytes of a state that is gone, once the call is over that took it away. Its pages are DIRTY then: a state that takes
  its place overwrites them, and what it leaves is zeroed before the call returns. Who finds UNFINISHED first zeroes
  what the lock's dead holder has left (erase_kernels.finish).
- A state that was made while an erasure ran. The erasure replaces ERASURES before it takes the first lock. A writer
  compares ERASURES, under the lock, with what it was when its request began. So the erasure comes to a segment after
  what was written by those who have not seen it.

A process that dies leaves no lock held. One that is stopped while it holds a lock is waited for a while: then a change
is refused, a state is not kept, and an erasure fails.

Costs: a read is one pass over the state's words, and so is a write, from where the tensors lie. One byte in five of a
segment is index. What was never used takes no memory.

Rejected: one heap for all processes (its lock would be taken by all, and its free list recovered from every state in
which one may die); erasing without a lock (arena_locks); a reader's lock on a state (a dead reader holds it); states as
numpy arrays in shared files (no budget); pages of many sizes (they fragment) or of 4 kB (six of seven bytes of a small
user are empty); one set of 16 entries for a name (1 of 200 states has no place where three of four are in use).

Kernels take the address of a segment and its numbers of entries and pages, the number of an entry, the two words of a
name (high, low), and the private memory of the segment's process, which they write:
    counts, firsts    int64 [E], pages of each entry, 0 if it has none, and the first of them
    free              int64 [P], the free pages that were in use once
    books             int64 [BOOKS]: FREE, how many of `free` there are, the last DIRTY of which hold bytes of states
                      that are gone; FRESH, the first page that never was in use; HAND and BROOM, the next entries that
                      the eviction and the sweep look at
    names             int64 [2**k], low words of states that are gone, by their last bits
"""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.index import mix
from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import (
    exchange,
    load_acquire,
    load_f32_bits,
    load_i64,
    load_i64_anywhere,
    prefetch,
    store_i64,
)
from freshet_serving.processor.kernels.row_stamps import UNKNOWN_STAMP

HEADER, ERASURES, SECRET, SECRET_WORDS = 64, 0, 8, 4
HEAD, SEQUENCE, USED, UNFINISHED = 8, 0, 1, 2
ENTRY, WAYS = 16, 8
SEQ, HIGH, LOW, OWNER, SUBJECT, WRITTEN_MS, WEIGHTS, FLIP, STEP, STAMPS, WORDS, FIRST, SUM, TOUCHED = range(14)
PAGE = 64
"""Words of a page: 512 bytes."""

HIT, ABSENT, EVICTED, TORN, EXPIRED, OTHER_WEIGHTS, OTHER_ROWS = range(7)
"""Outcomes of a look; of several causes of a miss the last one counts."""
NOBODY = 0
"""An owner or a subject that an erasure does not ask for."""
FROM_FLIP, TO_FLIP, FROM_STEP, FROM_MS, AS_OF, BOUNDS = range(6)
"""Bounds of states that need not be valid: flips, steps and times. AS_OF is the step of one that was read so."""
EXACT = np.array([1, 0, 0, 0, -1], np.int64)
"""Bounds within which nothing lies, so nobody writes to them."""


def segment_shape(words: int) -> tuple[int, int]:
    """Return the entries and pages of a segment of so many words."""
    pages = max(0, words - HEAD - WAYS * ENTRY) // (PAGE + 1 + ENTRY)
    return -(-pages // WAYS) * WAYS, pages


@inlined
def start_of_links(entries):
    """Return the byte of a segment at which its links begin."""
    return 8 * (HEAD + entries * ENTRY)


@inlined
def entry_at(segment, number):
    return segment + 8 * (HEAD + number * ENTRY)


@inlined
def set_of(half, entries):
    """Return the first of WAYS entries in which a name with this word (`half`) may be."""
    return WAYS * np.int64(mix(half) % np.uint64(entries // WAYS))


@inlined
def place_of(first, other, n):
    """Return the number of the n-th entry in which a name may be, of the sets that its low and high words lead to."""
    return first + n if n < WAYS else other + n - WAYS


@inlined
def places(first, other):
    """Return the number of entries in which a name may be: both sets may be one."""
    return WAYS if first == other else 2 * WAYS


@kernel(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64))
def find_entry(segment, entries, high, low, after):
    """Return the number of the next entry after one (-1 for none) that has a name, or -1."""
    first, other = set_of(low, entries), set_of(high, entries)
    start = 0
    if after >= 0:
        start = 1 + (after - first if first <= after < first + WAYS else WAYS + after - other)
    for n in range(start, places(first, other)):
        prefetch(entry_at(segment, place_of(first, other, n)))
    for n in range(start, places(first, other)):
        number = place_of(first, other, n)
        at = entry_at(segment, number)
        if load_acquire(at + 8 * SEQ) != 0 and load_i64(at + 8 * LOW) == low and load_i64(at + 8 * HIGH) == high:
            return number
    return -1


@inlined
def sum_fields(at, seq):
    """Return both sums of the fields of an entry at an address, with SEQ as it is given."""
    a, b = seq, seq
    for field in range(HIGH, SUM):
        a += load_i64(at + 8 * field)
        b += a
    return a, b


@kernel(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64, nb.int64[::1],
        nb.int64[::1],
    )
)  # fmt: skip
def read_state(segment, entries, pages, number, high, low, oldest_ms, stamps, weights, bounds, out):
    """Copy a state's words behind its stamps, if it is whole, not too old, and valid or within bounds.

    Returns when it was written, or the negative outcome of a look without one: then nothing of `out` may be used.

    Args:
        oldest_ms: The earliest time at which it may have been written.
        stamps: int64 [n], the stamps of its rows as of the epoch that is read.
        weights: The mark of the dense weights that are read.
        bounds: int64 [BOUNDS], which states need not be valid; AS_OF is written.
        out: int64 [m], its other words; written.
    """
    at = entry_at(segment, number)
    seq = load_acquire(at + 8 * SEQ)
    if seq == 0 or load_i64(at + 8 * LOW) != low or load_i64(at + 8 * HIGH) != high:
        return -ABSENT
    if load_i64(at + 8 * STAMPS) != len(stamps) or load_i64(at + 8 * WORDS) != len(stamps) + len(out):
        return -TORN
    a, b = sum_fields(at, seq)
    expected, written_ms = load_i64(at + 8 * SUM), load_i64(at + 8 * WRITTEN_MS)
    if written_ms < oldest_ms:
        return -EXPIRED
    flip, step = load_i64(at + 8 * FLIP), load_i64(at + 8 * STEP)
    bounded = bounds[FROM_FLIP] <= flip <= bounds[TO_FLIP]
    bounded = bounded and step >= bounds[FROM_STEP] and written_ms >= bounds[FROM_MS]
    valid = load_i64(at + 8 * WEIGHTS) == weights
    if not (valid or bounded):
        return -OTHER_WEIGHTS
    page, links = load_i64(at + 8 * FIRST), segment + start_of_links(entries)
    first_page, done, words = links + 8 * pages, 0, len(stamps) + len(out)
    while done < words:
        if page < 0 or page >= pages:
            return -TORN
        source, count, following = first_page + 8 * PAGE * page, min(PAGE, words - done), load_i64(links + 8 * page)
        while done + count < words and following == page + 1 < pages:
            page, count, following = following, min(count + PAGE, words - done), load_i64(links + 8 * following)
        compared = max(0, min(count, len(stamps) - done))
        for i in range(compared):
            word = load_i64(source + 8 * i)
            if word != stamps[done + i] or word == UNKNOWN_STAMP:
                if not bounded:
                    return -OTHER_ROWS
                valid = False
            a += word
            b += a
        target = np.int64(out.ctypes.data) + 8 * (done - len(stamps))
        for i in range(compared, count):
            word = load_i64(source + 8 * i)
            store_i64(target + 8 * i, word)
            a += word
            b += a
        done += count
        page = following
    if load_acquire(at + 8 * SEQ) != seq or expected != a ^ np.int64(mix(b)):
        return -TORN
    if not valid:
        bounds[AS_OF] = step
    if load_i64(at + 8 * TOUCHED) == 0:
        store_i64(at + 8 * TOUCHED, 1)
    return written_ms


FREE, FRESH, HAND, BROOM, DIRTY, BOOKS = range(6)


@inlined
def clear(address, nbytes):
    """Write zeros; address and bytes are multiples of 8."""
    for at in range(address, address + nbytes, 8):
        store_i64(at, 0)


@inlined
def give_up(segment, entries, pages, number, counts, firsts, free, books):
    """Take the state of an entry away: its SEQ first, then its pages, which become free and dirty."""
    at, links = entry_at(segment, number), segment + start_of_links(entries)
    exchange(at + 8 * SEQ, 0)
    page = firsts[number]
    for _ in range(counts[number]):
        free[books[FREE]] = page
        books[FREE] += 1
        books[DIRTY] += 1
        page = load_i64(links + 8 * page)
    counts[number] = 0
    clear(at, 8 * ENTRY)


@inlined
def clean(segment, entries, pages, free, books):
    first_page = segment + start_of_links(entries) + 8 * pages
    for n in range(books[FREE] - books[DIRTY], books[FREE]):
        clear(first_page + 8 * PAGE * free[n], 8 * PAGE)
    books[DIRTY] = 0


@inlined
def take_page(free, books):
    """Return a free page, of which there is one: a dirty one if there is one."""
    if books[FREE] == 0:
        books[FRESH] += 1
        return books[FRESH] - 1
    books[FREE] -= 1
    books[DIRTY] = max(0, books[DIRTY] - 1)
    return free[books[FREE]]


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def make_way(segment, entries, pages, number, counts, firsts, free, books):
    """Call give_up() for an entry that write_state() is about to write to."""
    give_up(segment, entries, pages, number, counts, firsts, free, books)


@kernel(nb.void(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1]))
def drop(segment, entries, pages, number, counts, firsts, free, books):
    give_up(segment, entries, pages, number, counts, firsts, free, books)
    clean(segment, entries, pages, free, books)


@kernel(nb.void(nb.int64, nb.int64, nb.int64[::1]))
def note_gone(segment, number, names):
    low = load_i64(entry_at(segment, number) + 8 * LOW)
    names[low & (len(names) - 1)] = low


@kernel(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1],
        nb.int64[::1], nb.int64,
    )
)  # fmt: skip
def sweep(segment, entries, pages, oldest_ms, counts, firsts, free, books, names, most):
    """Look at the next `most` entries; take away states that are older than `oldest_ms` or erased; return how many."""
    gone = 0
    for _ in range(min(most, entries)):
        number = books[BROOM] % entries
        books[BROOM] = number + 1
        at = entry_at(segment, number)
        if counts[number] == 0:
            continue
        erased = load_acquire(at + 8 * SEQ) == 0
        if erased or load_i64(at + 8 * WRITTEN_MS) < oldest_ms:
            if not erased:
                note_gone(segment, number, names)
            give_up(segment, entries, pages, number, counts, firsts, free, books)
            gone += 1
    clean(segment, entries, pages, free, books)
    return gone


@kernel(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1], nb.int64[::1], nb.int64[::1],
        nb.int64[::1],
    )
)  # fmt: skip
def evict(segment, entries, pages, least_free, counts, firsts, free, books, names):
    """Take states away that were not read since this last came by, until `least_free` pages are free; return how many.

    Their pages are dirty until write_state() has written to some and zeroed the others.
    """
    gone = 0
    while books[FREE] + pages - books[FRESH] < least_free:
        number = books[HAND] % entries
        books[HAND] = number + 1
        if counts[number]:
            touched = entry_at(segment, number) + 8 * TOUCHED
            if load_i64(touched) != 0:
                store_i64(touched, 0)
            else:
                note_gone(segment, number, names)
                give_up(segment, entries, pages, number, counts, firsts, free, books)
                gone += 1
    return gone


@kernel(nb.int64(nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1]))
def place_for(segment, entries, high, low, counts):
    """Return the entry to write a name's state to: its own, else a free one, else one that was not read lately."""
    first, other = set_of(low, entries), set_of(high, entries)
    chosen, rank, most = first, 3, 0
    for begin in (first, other):
        gone, number_gone, untouched = 0, 0, -1
        for number in range(begin, begin + WAYS):
            at = entry_at(segment, number)
            if counts[number] and load_i64(at + 8 * LOW) == low and load_i64(at + 8 * HIGH) == high:
                return number
            if counts[number] == 0 or load_i64(at + 8 * SEQ) == 0:
                gone, number_gone = gone + 1, number
            elif untouched < 0 and load_i64(at + 8 * TOUCHED) == 0:
                untouched = number
        if gone > most:
            chosen, rank, most = number_gone, 0, gone
        elif untouched >= 0 and rank > 1:
            chosen, rank = untouched, 1
    if rank == 3:
        for n in range(places(first, other)):
            store_i64(entry_at(segment, place_of(first, other, n)) + 8 * TOUCHED, 0)
    return chosen


@inlined
def words_of(pieces):
    """Return the words that pieces take: each begins with a new one."""
    total = 0
    for p in range(len(pieces)):
        total += (pieces[p, 1] + 7) >> 3
    return total


@kernel(
    nb.int64(
        nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64, nb.int64[:, ::1], nb.int64[::1],
        nb.int64[::1], nb.int64[::1], nb.int64[::1],
    )
)  # fmt: skip
def write_state(segment, entries, pages, number, fields, stamps, pieces, counts, firsts, free, books):
    """Write a state to an entry without one, from free pages, which suffice; the last store is its SEQ, returned.

    No page is dirty afterwards.

    Args:
        fields: int64 [SUM], what its fields will be; SEQ, STAMPS, WORDS and FIRST are found here.
        stamps: Number of its words that are stamps, the first ones.
        pieces: int64 [n, 2], address and bytes of what its words are, one after another; bytes are a multiple of 4.
    """
    at, links = entry_at(segment, number), segment + start_of_links(entries)
    first_page = links + 8 * pages
    seq = load_i64(segment + 8 * SEQUENCE) + 1
    store_i64(segment + 8 * SEQUENCE, seq)
    for field in range(HIGH, STAMPS):
        store_i64(at + 8 * field, fields[field])
    store_i64(at + 8 * STAMPS, stamps)
    store_i64(at + 8 * WORDS, words_of(pieces))
    page = take_page(free, books)
    store_i64(at + 8 * FIRST, page)
    firsts[number], counts[number] = page, 1
    a, b = sum_fields(at, seq)
    target, room, used = first_page + 8 * PAGE * page, PAGE, max(load_i64(segment + 8 * USED), page + 1)
    store_i64(segment + 8 * USED, used)
    for p in range(len(pieces)):
        source, left = pieces[p, 0], pieces[p, 1]
        while left > 0:
            if room == 0:
                following = take_page(free, books)
                store_i64(links + 8 * page, following)
                page = following
                counts[number] += 1
                target, room, used = first_page + 8 * PAGE * page, PAGE, max(used, page + 1)
                store_i64(segment + 8 * USED, used)
            count = min(room, left >> 3)
            for i in range(count):
                word = load_i64_anywhere(source + 8 * i)
                store_i64(target + 8 * i, word)
                a += word
                b += a
            source, target, left, room = source + 8 * count, target + 8 * count, left - 8 * count, room - count
            if 0 < left < 8 and room > 0:
                word = np.int64(load_f32_bits(source))
                store_i64(target, word)
                a += word
                b += a
                target, left, room = target + 8, 0, room - 1
    clear(target, 8 * room)
    clean(segment, entries, pages, free, books)
    store_i64(at + 8 * SUM, a ^ np.int64(mix(b)))
    store_i64(at + 8 * TOUCHED, 0)
    exchange(at + 8 * SEQ, seq)
    return seq
