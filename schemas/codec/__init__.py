"""Bytes to rows and back: Confluent wire format, one message at a time or a block at once.

Everything that writes or reads messages goes through here. It knows formats and types, never the meaning of values.
"""

from schemas.codec._bulk import Columns, Decoded, decode_columns, decode_rows
from schemas.codec._frame import frame_bodies, zigzag
from schemas.codec._ids import IN_USE, PACKAGED, PackagedIds, SchemaIds, Writer, snake
from schemas.codec._single import decode, encode, encoder, schema_id_of, use

__all__ = [
    "IN_USE",
    "PACKAGED",
    "Columns",
    "Decoded",
    "PackagedIds",
    "SchemaIds",
    "Writer",
    "decode",
    "decode_columns",
    "decode_rows",
    "encode",
    "encoder",
    "frame_bodies",
    "schema_id_of",
    "snake",
    "use",
    "zigzag",
]
