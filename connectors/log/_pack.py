"""Batches as blobs: how the embedded log stores many messages in one row of its file.

Layout, little-endian: count u32, flags u32, then int64 timestamps, [int64 offsets when compaction left gaps,] int32 key
lengths and value lengths (-1: null), u32 length of a JSON list of headers, those headers, all keys, all values. A CRC-32
over the blob and its place is stored beside it. Lengths as arrays keep reading at a slice per message.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from schemas.errors import Corrupted, Where
from schemas.messages import Block, Headers, Record

_GAPS: Final = 1


def pack(records: Sequence[Record], timestamps_ms: Sequence[int], offsets: Sequence[int] | None = None) -> bytes:
    """Records of one partition as one blob. `offsets` only when they are not consecutive."""
    n = len(records)
    keys = [r.key for r in records]
    values = [r.value for r in records]
    key_lengths = np.fromiter((-1 if k is None else len(k) for k in keys), np.int32, n)
    value_lengths = np.fromiter((-1 if v is None else len(v) for v in values), np.int32, n)
    headers = b""
    if any(r.headers for r in records):
        with_headers = [
            [i, [[name, base64.b64encode(v).decode()] for name, v in r.headers]]
            for i, r in enumerate(records)
            if r.headers
        ]
        headers = json.dumps(with_headers, separators=(",", ":")).encode()
    parts = [
        np.array([n, 0 if offsets is None else _GAPS], np.uint32).tobytes(),
        np.asarray(timestamps_ms, np.int64).tobytes(),
    ]
    if offsets is not None:
        parts.append(np.asarray(offsets, np.int64).tobytes())
    parts += [key_lengths.tobytes(), value_lengths.tobytes(), np.array([len(headers)], np.uint32).tobytes(), headers]
    parts += [k for k in keys if k]
    parts += [v for v in values if v]
    return b"".join(parts)


class Stored(Block):
    """A stored batch as a block, with the time of each message."""

    __slots__ = ("timestamps_ms",)

    def __init__(self, block: Block, timestamps_ms: Sequence[int]) -> None:
        super().__init__(
            block.topic, block.partition, block.values, block.next_offset, offsets=block.offsets, keys=block.keys,
            oldest_ms=timestamps_ms[0] if timestamps_ms else 0, headers=block.headers,
        )  # fmt: skip
        self.timestamps_ms = timestamps_ms


def _slices(
    buffer: bytes, start: int, lengths: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> tuple[list[bytes | None], int]:
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64) + start
    stops = ends.tolist()
    starts = [start, *stops[:-1]]
    if lengths.size and lengths.min() < 0:
        found: list[bytes | None] = [
            None if n < 0 else buffer[a:b] for n, a, b in zip(lengths.tolist(), starts, stops, strict=True)
        ]
    else:
        found = [buffer[a:b] for a, b in zip(starts, stops, strict=True)]
    return found, (stops[-1] if stops else start)


def _keys(
    buffer: bytes, start: int, lengths: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> tuple[list[bytes | None], int]:
    """As `_slices`; a ledger's keys are all the same, and one comparison tells."""
    n, length = lengths.size, int(lengths[0]) if lengths.size else -1
    if length > 0 and (lengths == length).all():
        key, end = buffer[start : start + length], start + n * length
        if buffer[start:end] == key * n:
            return [key] * n, end
    return _slices(buffer, start, lengths)


def checksum(blob: bytes, topic: str, partition: int, first: int, next_offset: int) -> int:
    """CRC-32 of a batch and of its place, so that a batch that turns up elsewhere is noticed as well."""
    return zlib.crc32(blob, zlib.crc32(f"{topic}/{partition}/{first}/{next_offset}".encode()))


def unpack(blob: bytes, crc: int, topic: str, partition: int, first: int, next_offset: int) -> Stored:
    """A blob as a block. Raises `Corrupted` with the position when its bytes are not those that were written."""
    if checksum(blob, topic, partition, first, next_offset) != crc:
        raise Corrupted(
            f"{Where(topic, partition, first)}: the stored batch fails its checksum; restore the log's file from a backup"
        )
    n, flags = (int(x) for x in np.frombuffer(blob, np.uint32, 2))
    at = 8
    timestamps = np.frombuffer(blob, np.int64, n, at).tolist()
    at += 8 * n
    offsets: Sequence[int] = range(first, first + n)
    if flags & _GAPS:
        offsets = np.frombuffer(blob, np.int64, n, at).tolist()
        at += 8 * n
    key_lengths = np.frombuffer(blob, np.int32, n, at)
    at += 4 * n
    value_lengths = np.frombuffer(blob, np.int32, n, at)
    at += 4 * n
    header_length = int(np.frombuffer(blob, np.uint32, 1, at)[0])
    at += 4
    headers: dict[int, Headers] = {}
    if header_length:
        for i, pairs in json.loads(blob[at : at + header_length]):
            headers[i] = tuple((name, base64.b64decode(v)) for name, v in pairs)
        at += header_length
    keys, at = _keys(blob, at, key_lengths)
    values, at = _slices(blob, at, value_lengths)
    if at != len(blob):
        raise Corrupted(f"{Where(topic, partition, first)}: a stored batch has {len(blob)} bytes instead of {at}")
    return Stored(Block(topic, partition, values, next_offset, offsets=offsets, keys=keys, headers=headers), timestamps)


def part_of(block: Stored, start: int, limit: int | None = None) -> Stored:
    """The messages of a block from offset `start` on, at most `limit`."""
    offsets = block.offsets
    i = (
        next((i for i, o in enumerate(offsets) if o >= start), len(offsets))
        if not isinstance(offsets, range)
        else (max(0, start - offsets.start))
    )
    j = len(offsets) if limit is None else min(len(offsets), i + limit)
    if i == 0 and j == len(offsets):
        return block
    next_offset = block.next_offset if j == len(offsets) else offsets[j]
    return Stored(block.part(i, j, next_offset), block.timestamps_ms[i:j])
