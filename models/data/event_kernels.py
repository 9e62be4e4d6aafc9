"""Kernels of users' events (models.data.user_events): blocks of a heap, events in them, and what a row sees of them.

An event is `width` words of 8 bytes: its time as an ordered integer, the number of its row, and its values. A user's
events lie in one block in the order of (time, row). A block has room for 2 ** n events; free blocks of a size are
linked through their first words. A book is three words by user: offset of the block, events, room.

Arguments of all kernels
    books: int64 [users, 3].
    memory, file: Addresses of the heap's words below `base`, and of the others.
    base, end: Words in memory, and in all.
    free: int64 [64], first free block by the logarithm of its room; written.
    width: Words of an event.
    users: int64 [n], user numbers.
"""

# mypy: ignore-errors

import numba as nb

from freshet_serving.processor.kernels.kernel import inlined, kernel
from freshet_serving.processor.kernels.pointers import load_i64, store_i64

AT, COUNT, ROOM = range(3)
TIME, ROW, VALUES = range(3)
FIRST_ROOM = 4
NOWHERE = -1

_IDS = nb.types.Array(nb.int64, 1, "A", readonly=True)
_VALUES = nb.types.Array(nb.int64, 2, "A", readonly=True)


@inlined
def block(memory, file, base, at):
    """Return the address of the word at an offset of the heap."""
    if at < base:
        return memory + 8 * at
    return file + 8 * (at - base)


@inlined
def copy_words(source, target, words):
    """Copy words to a lower address, or to another block."""
    for word in range(words):
        store_i64(target + 8 * word, load_i64(source + 8 * word))


@inlined
def size_class(room):
    number = 0
    while 1 << number < room:
        number += 1
    return number


@inlined
def give_back(memory, file, base, at, room, free):
    number = size_class(room)
    store_i64(block(memory, file, base, at), free[number])
    free[number] = at


@inlined
def pruned(events, count, width, most, floor, oldest_time):
    """Drop the events that no row from `floor` on sees; return how many are left.

    Those rows see at most `most` events older than the newest time before them, or of that time.
    """
    size, target = 8 * width, count
    newest, older, tied = 0, 0, -1
    for i in range(count - 1, -1, -1):
        event = events + i * size
        stays = True
        if load_i64(event + 8 * ROW) < floor:
            time = load_i64(event)
            if tied < 0:
                newest, tied = time, 0
            if time == newest:
                tied += 1
                stays = tied <= most
            else:
                older += 1
                stays = older <= most
            stays = stays and time > oldest_time
        if stays:
            target -= 1
            if target != i:
                copy_words(event, events + target * size, width)
    if target:
        copy_words(events + target * size, events, (count - target) * width)
    return count - target


@inlined
def first_at(events, count, size, time):
    """Return the number of events of a block, among the first `count`, that are older than a time."""
    low = 0
    while low < count:
        middle = (low + count) // 2
        if load_i64(events + middle * size) < time:
            low = middle + 1
        else:
            count = middle
    return low


@kernel(
    nb.int64(
        _IDS, _IDS, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[::1],
        nb.int64, nb.int64, nb.int64, nb.int64,
    )
)  # fmt: skip
def make_room(users, needs, books, memory, file, base, end, used, free, width, most, floor, oldest_time):
    """Give each user a block with room for more events; return the number of users that have it.

    Less than all: the heap is too short for the next one. Called again with a longer one, it continues.

    Args:
        users: Distinct ones.
        needs: int64 [n], events to come of each.
        used: int64 [1], words in use; written.
        most: Longest history; 0 if events are not dropped.
        floor: First row that is still read.
        oldest_time: Events until then are dropped.
    """
    for n in range(len(users)):
        user = users[n]
        at, count, room = books[user, AT], books[user, COUNT], books[user, ROOM]
        if count + needs[n] <= room:
            continue
        if room and most:
            count = pruned(block(memory, file, base, at), count, width, most, floor, oldest_time)
            books[user, COUNT] = count
            if count + needs[n] <= room:
                continue
        size = max(FIRST_ROOM, room)
        while size < count + needs[n]:
            size *= 2
        number = size_class(size)
        new = free[number]
        if new >= 0:
            free[number] = load_i64(block(memory, file, base, new))
        else:
            new = used[0]
            if new < base and new + size * width > base:
                new = base
            if new + size * width > end:
                return n
            used[0] = new + size * width
        if room:
            copy_words(block(memory, file, base, at), block(memory, file, base, new), count * width)
            give_back(memory, file, base, at, room, free)
        books[user, AT], books[user, ROOM] = new, size
    return len(users)


@kernel(
    nb.void(
        _IDS, _IDS, _IDS, _VALUES, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64
    )
)  # fmt: skip
def push(users, times, rows, values, books, memory, file, base, width, first_only):
    """Add events where they belong by (time, row). Each user's block has room for its own.

    With `first_only` they are inserted one by one. Else those of a user are merged, so that each event of theirs moves
    once at most, however late these are.

    Args:
        users: Without `first_only` ascending.
        times: int64 [n], ordered; without `first_only` ascending for each user.
        rows: int64 [n], ascending, for each user and time.
        values: int64 [n, width - 2].
        first_only: Events that a user may have, for histories that keep the oldest; 0 for no limit.
    """
    size, stop = 8 * width, 0
    while stop < len(users):
        user, first = users[stop], stop
        stop += 1
        while not first_only and stop < len(users) and users[stop] == user:
            stop += 1
        i = books[user, COUNT]
        if first_only and i >= first_only:
            continue
        events, target = block(memory, file, base, books[user, AT]), i + stop - first
        books[user, COUNT] = target
        for n in range(stop - 1, first - 1, -1):
            while i and load_i64(events + (i - 1) * size) > times[n]:
                i -= 1
                target -= 1
                copy_words(events + i * size, events + target * size, width)
            target -= 1
            event = events + target * size
            store_i64(event, times[n])
            store_i64(event + 8 * ROW, rows[n])
            for v in range(width - VALUES):
                store_i64(event + 8 * (VALUES + v), values[n, v])


@kernel(
    nb.void(
        _IDS, _IDS, _IDS, _IDS, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.boolean,
        nb.int64[::1], nb.int64[:, ::1],
    )
)  # fmt: skip
def select(users, times, since, rows, books, memory, file, base, width, most, exclude, splits, events_seen):
    """Find what rows see of their users' events; count it, or write it out.

    A row sees events of rows before it: of the newest `most` that are older than the newest time among them, or of all
    if it is later than that time, those before its own time. Without `exclude`: of the newest `most`, those until it.

    Args:
        users: Negative for rows without events.
        times: int64 [n], ordered.
        since: int64 [n], events until then are not seen, ordered.
        most: Longest history.
        exclude: Hide events of the row's own time.
        splits: int64 [n + 1]; if `events_seen` is empty, written: how many events row n sees, at n + 1.
        events_seen: int64 [events, width]; empty, or written: the events of row n at splits[n].
    """
    size, counting = 8 * width, len(events_seen) == 0
    for n in range(len(users)):
        if counting:
            splits[n + 1] = 0
        user = users[n]
        if user < 0:
            continue
        if not counting and splits[n] == splits[n + 1]:
            continue
        events, time = block(memory, file, base, books[user, AT]), times[n]
        newest, older, taken, target = nb.int64(0), 0, 0, splits[n + 1]
        begun, i = False, books[user, COUNT]
        while i:
            i -= 1
            event = events + i * size
            if load_i64(event + 8 * ROW) >= rows[n]:
                continue
            when = load_i64(event)
            if when <= since[n]:
                break
            if not begun:
                begun, newest = True, when
                if exclude and time <= newest:
                    # None of that time counts, and there may be many.
                    i = first_at(events, i, size, newest)
                    continue
            if not exclude or when < newest or time > newest:
                older += 1
                if older > most:
                    break
                if when < time or (when == time and not exclude):
                    taken += 1
                    if not counting:
                        target -= 1
                        for word in range(width):
                            events_seen[target, word] = load_i64(event + 8 * word)
        if counting:
            splits[n + 1] = taken


@kernel(
    nb.int64(
        _IDS, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1], nb.int64[:, ::1]
    )
)  # fmt: skip
def copy_out(users, books, memory, file, base, width, stop, counts, events_copied):
    """Copy the events of rows before `stop`, user by user; return how many there are.

    Args:
        counts: int64 [n], events of each user; written.
        events_copied: int64 [events, width], written; or empty: events are only counted.
    """
    size, total = 8 * width, 0
    for n in range(len(users)):
        user, before = users[n], total
        events = block(memory, file, base, books[user, AT])
        for i in range(books[user, COUNT]):
            event = events + i * size
            if load_i64(event + 8 * ROW) < stop:
                if len(events_copied):
                    for word in range(width):
                        events_copied[total, word] = load_i64(event + 8 * word)
                total += 1
        counts[n] = total - before
    return total


@kernel(nb.void(nb.int64, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64[::1]))
def release(user, books, memory, file, base, free):
    if books[user, ROOM]:
        give_back(memory, file, base, books[user, AT], books[user, ROOM], free)
    books[user, AT], books[user, COUNT], books[user, ROOM] = 0, 0, 0


@kernel(nb.void(_IDS, nb.int64[:, ::1], nb.int64, nb.int64, nb.int64, nb.int64, nb.int64[::1]))
def newest_times(users, books, memory, file, base, width, times):
    """Write the time of each user's newest event, ordered, to `times`; users without events keep what is there."""
    for n in range(len(users)):
        user = users[n]
        count = books[user, COUNT]
        if count:
            times[n] = load_i64(block(memory, file, base, books[user, AT]) + 8 * width * (count - 1))
