"""One old message for each released schema, written by fastavro alone: `python -m tests.schemas.make_fixtures` adds those that are
missing and never touches the others. `test_evolution` reads them for ever."""

import io
import json
from pathlib import Path

import fastavro

from schemas.codec import PACKAGED
from tests.schemas.values import plain_values

FOLDER = Path(__file__).with_name("fixtures")


def name_of(record: str, version: int) -> str:
    return f"{record}-{version}"


def main() -> None:
    for schema_id, writer in PACKAGED.all().items():
        path = FOLDER / name_of(writer.record.__name__, writer.version)
        if path.with_suffix(".bin").exists():
            continue
        values = plain_values(writer.avsc)
        schema = json.loads(writer.avsc)
        for field in schema["fields"]:
            if isinstance(field["type"], dict) and "logicalType" in field["type"]:
                field["type"] = field["type"]["type"]
        out = io.BytesIO()
        out.write(b"\x00" + schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), values)
        path.with_suffix(".bin").write_bytes(out.getvalue())
        text = {k: {"bytes": v.hex()} if isinstance(v, bytes) else v for k, v in values.items()}
        path.with_suffix(".json").write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n", "utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
