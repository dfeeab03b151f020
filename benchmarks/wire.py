"""How many telemetry samples (9 fields) a second are decoded from Confluent's wire format in bulk, and one by one by us and by peers.

Peers in the same run: fastavro and avro-python3 record by record, header and schema id looked at as the format asks. Encoding likewise.
Every way's result is compared once before anything is timed.
"""

import io
import json
import struct
from collections.abc import Sequence
from typing import Final

import avro.io
import avro.schema
import fastavro

from benchmarks._frame import side_by_side
from schemas.codec import PACKAGED, decode, decode_columns, decode_rows, encoder
from schemas.codec._frame import plain
from schemas.messages import Block
from schemas.records import JobPlaced, NodeTelemetry

NODES: Final = 2_500
# A fetch of a busy partition, and as many of them as a stream brings one after the other: a single one would time cold caches.
BLOCK: Final = 5_000
BLOCKS: Final = 20
ONE_BY_ONE: Final = 5_000
SLOW: Final = 1_000
RUNS: Final = 11


def _samples(count: int) -> list[NodeTelemetry]:
    return [
        NodeTelemetry(
            f"node-{i % NODES:05}",
            1_764_576_000_000 + i,
            i,
            8,
            93.5 + i % 7,
            (75 << 30) + i,
            64_000 + i % 100,
            1 << 38,
            5_200.0 + i,
        )
        for i in range(count)
    ]


def _placed() -> JobPlaced:
    return JobPlaced(
        "default", 123_456, 1_764_576_000_000, "jobs/2@123456", "job-000123", 1, "ada", "default", ("node-00001",), (1,), (255,), 1000,
        8000, "node", "node-00001", 1234, 17, "fits in node-00001: 8 of 8 cards free, the fullest of 17", 1_764_576_060_000,
    )  # fmt: skip


def run(quick: bool = False) -> dict[str, float]:
    """Figures by name, per second: `bulk_decode_per_s` (columns), `bulk_rows_per_s`, `decode_per_s`, `fastavro_per_s`,
    `avro_python3_per_s`, `encode_per_s`, `fastavro_encode_per_s`, `placed_encode_per_s`; `bulk_over_fastavro` is a ratio."""
    avsc = PACKAGED.writer(PACKAGED.newest(NodeTelemetry)).avsc
    schema = fastavro.parse_schema(json.loads(plain(avsc)))
    reference = avro.schema.parse(plain(avsc))
    size = 1_000 if quick else BLOCK
    many = _samples(size * BLOCKS)
    rows = many[:size]
    encode, encode_placed, placed = encoder(NodeTelemetry), encoder(JobPlaced), _placed()
    stream = [encode(r) for r in many]
    blocks = [
        Block("resource-telemetry", 0, stream[i : i + size], i + size, offsets=range(i, i + size))
        for i in range(0, len(stream), size)
    ]
    values, block = stream[:size], blocks[0]
    few, slow = values[:ONE_BY_ONE], values[:SLOW]

    schemas = {PACKAGED.newest(NodeTelemetry): schema}

    def by_fastavro(some: Sequence[bytes]) -> list[object]:
        read, unpack = fastavro.schemaless_reader, struct.Struct(">bI").unpack_from
        done = []
        for value in some:
            magic, schema_id = unpack(value)
            if magic:
                raise ValueError("not this wire format")
            done.append(read(io.BytesIO(value[5:]), schemas[schema_id], None))
        return done

    def by_reference(some: Sequence[bytes]) -> list[object]:
        reader = avro.io.DatumReader(reference, reference)
        return [reader.read(avro.io.BinaryDecoder(io.BytesIO(v[5:]))) for v in some]

    def encode_by_fastavro(some: Sequence[NodeTelemetry]) -> list[bytes]:
        done = []
        for row in some:
            out = io.BytesIO()
            out.write(values[0][:5])
            fastavro.schemaless_writer(out, schema, row._asdict())
            done.append(out.getvalue())
        return done

    wanted = [r._asdict() for r in rows]
    assert [r for _, r in decode_rows(block).rows] == rows
    assert decode_columns(block)[0][0].frame.to_dicts() == wanted
    assert by_fastavro(few) == wanted[: len(few)]
    assert by_reference(slow) == wanted[: len(slow)]
    assert encode_by_fastavro(rows) == values

    figures = side_by_side(
        {
            "bulk_decode_per_s": (lambda: [decode_columns(b) for b in blocks], len(stream)),
            "bulk_rows_per_s": (lambda: [decode_rows(b) for b in blocks], len(stream)),
            "decode_per_s": (lambda: [decode(v) for v in few], len(few)),
            "fastavro_per_s": (lambda: by_fastavro(stream), len(stream)),
            "avro_python3_per_s": (lambda: by_reference(slow), len(slow)),
            "encode_per_s": (lambda: [encode(r) for r in rows], len(rows)),
            "fastavro_encode_per_s": (lambda: encode_by_fastavro(rows), len(rows)),
            "placed_encode_per_s": (lambda: [encode_placed(placed) for _ in range(SLOW)], SLOW),
        },
        quick=quick,
        runs=RUNS,
    )
    return figures | {"bulk_over_fastavro": figures["bulk_decode_per_s"] / figures["fastavro_per_s"]}
