"""A sorted line of waiting jobs that stays quick when it is long: a list of short sorted lists.

Used by the state for the whole line and for each kind of request. With one plain list each arrival or departure would move
the rest in memory: 30 µs at 100,000 jobs, on every entry that a restart replays. Never looks into the keys.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

# A job's place in the line: priority downwards, time of submission, seq of its acceptance; and its name.
Key = tuple[int, int, int, str]
# Short lists are split at twice this; 500 keys move in well under a microsecond.
CHUNK: Final = 500


class Line:
    """Keys in ascending order, each once."""

    __slots__ = ("_chunks", "_lasts", "_length")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        ordered = sorted(keys)
        self._chunks = [ordered[i : i + CHUNK] for i in range(0, len(ordered), CHUNK)]
        # The last key of each short list.
        self._lasts = [chunk[-1] for chunk in self._chunks]
        self._length = len(ordered)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> Key:
        """The first key. Raises `IndexError` when there is none."""
        return self._chunks[0][0]

    def head(self, count: int) -> list[Key]:
        """The first `count` keys, or all."""
        return list(islice(self, count))

    def add(self, key: Key) -> None:
        self._length += 1
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        i = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[i]
        insort(chunk, key)
        if len(chunk) > 2 * CHUNK:
            self._chunks.insert(i + 1, chunk[CHUNK:])
            self._lasts.insert(i + 1, chunk[-1])
            del chunk[CHUNK:]
        self._lasts[i] = chunk[-1]

    def remove(self, key: Key) -> None:
        """Raises `KeyError` when it is not there."""
        i = bisect_left(self._lasts, key)
        chunk = self._chunks[i] if i < len(self._chunks) else []
        j = bisect_left(chunk, key)
        if j == len(chunk) or chunk[j] != key:
            raise KeyError(key)
        del chunk[j]
        self._length -= 1
        if chunk:
            self._lasts[i] = chunk[-1]
        else:
            del self._chunks[i], self._lasts[i]

    def position(self, key: Key) -> int:
        """How many keys go before `key`."""
        i = bisect_left(self._lasts, key)
        before = sum(map(len, self._chunks[:i]))
        return before + (bisect_left(self._chunks[i], key) if i < len(self._chunks) else 0)
