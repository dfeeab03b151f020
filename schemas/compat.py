"""Evolution as a rule: a released schema never changes, and a new version is fully compatible with every one before.

Fully: today's readers understand what was written with any release, and yesterday's readers what is written today, so processes
can be upgraded in any order. Called by the tests, by `connectors.registry` for schemas from elsewhere, and by people:
`python -m schemas.compat` checks the catalogue, `--release` writes down the fingerprints of new versions.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Final, cast

from schemas.codec import PACKAGED

RELEASED: Final = "released.json"
_NUMBER: Final = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}


def _meaning(schema: object) -> object:
    """A schema without what only people read."""
    if isinstance(schema, Mapping):
        return {k: _meaning(v) for k, v in schema.items() if k != "doc"}
    if isinstance(schema, list):
        return [_meaning(s) for s in schema]
    return schema


def fingerprint(avsc: str) -> str:
    """SHA-256 of everything in a schema that readers, writers and resolution look at: all but `doc` and layout.

    Avro's own canonical form leaves out defaults and logical types; a release freezes these too.
    """
    text = json.dumps(_meaning(json.loads(avsc)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _fits(value: object, kind: object) -> bool:
    """Whether a default is a value of its type, as Avro writes defaults."""
    match kind:
        case list():
            return _fits(value, kind[0])
        case {"type": "array", "items": items}:
            return isinstance(value, list) and all(_fits(v, items) for v in value)
        case {"type": inner}:
            return _fits(value, inner)
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            low, high = _NUMBER[kind]
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        case "double" | "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "bytes":
            return isinstance(value, str) and all(ord(c) < 256 for c in value)
    return False


def problems(old: str, new: str) -> list[str]:
    """Why `new` must not follow `old`, a sentence each; [] when both read each other.

    Fields may be added or dropped when they have a default, and reordered; names and types stay.
    """
    was, now = _meaning(json.loads(old)), _meaning(json.loads(new))
    assert isinstance(was, dict)
    assert isinstance(now, dict)
    found = [
        f"{part} changed from {was.get(part)!r} to {now.get(part)!r}"
        for part in ("type", "name", "namespace")
        if was.get(part) != now.get(part)
    ]
    if found:
        return found
    before = {f["name"]: f for f in was["fields"]}
    after = {f["name"]: f for f in now["fields"]}
    for name, field in before.items():
        if name not in after:
            if "default" not in field:
                found.append(f"{name} is gone, and readers of the version before have no default for it")
        elif field["type"] != after[name]["type"]:
            found.append(
                f"{name} changed its type from {field['type']} to {after[name]['type']}; a new field beside it would be right"
            )
        elif "default" in field and "default" not in after[name]:
            found.append(f"{name} lost its default, so it could never be dropped")
    for name, field in after.items():
        if name in before:
            continue
        if "default" not in field:
            found.append(f"{name} is new and has no default for what was written before")
        elif not _fits(field["default"], field["type"]):
            found.append(f"the default of {name}, {field['default']!r}, is not of its type {field['type']}")
    return found


def _folder() -> Path:
    return Path(str(files("schemas").joinpath("avro")))


def released() -> dict[str, str]:
    """Fingerprints of released schemas by `Record/version`."""
    return cast(dict[str, str], json.loads((_folder() / RELEASED).read_text("utf-8")))


def check() -> list[str]:
    """Everything in the packaged catalogue that breaks the rule, a sentence each."""
    found = []
    frozen = released()
    catalogue = {f"{w.record.__name__}/{w.version}": w for w in PACKAGED.all().values()}
    for name, writer in catalogue.items():
        if name not in frozen:
            found.append(f"{name} is not released: run python -m schemas.compat --release")
        elif frozen[name] != fingerprint(writer.avsc):
            found.append(f"{name} is released and was changed: put it back, and make a new version")
    found += [f"{name} is released and is gone from the catalogue" for name in frozen if name not in catalogue]
    versions: dict[str, dict[int, str]] = {}
    for writer in catalogue.values():
        versions.setdefault(writer.record.__name__, {})[writer.version] = writer.avsc
    for record, texts in versions.items():
        if sorted(texts) != list(range(1, len(texts) + 1)):
            found.append(f"versions of {record} are {sorted(texts)}, not 1 to {len(texts)}")
        for old, new in combinations(sorted(texts), 2):
            found += [f"{record} version {new} after {old}: {p}" for p in problems(texts[old], texts[new])]
    on_disk = {p.relative_to(_folder()).as_posix() for p in _folder().rglob("*.avsc")}
    snake = {
        f"{re.sub(r'(?<!^)(?=[A-Z])', '_', w.record.__name__).lower()}/{w.version}.avsc" for w in catalogue.values()
    }
    found += [f"{path} has no id in ids.json" for path in sorted(on_disk - snake)]
    return found


def release() -> list[str]:
    """Write down fingerprints of versions that have none yet; never touches the others. Returns what was added."""
    frozen = released()
    new = {
        f"{w.record.__name__}/{w.version}": fingerprint(w.avsc)
        for w in PACKAGED.all().values()
        if f"{w.record.__name__}/{w.version}" not in frozen
    }
    (_folder() / RELEASED).write_text(json.dumps(frozen | new, indent=2) + "\n", "utf-8")
    return list(new)


def main(arguments: list[str]) -> int:
    """The command; 1 when something breaks the rule."""
    if "--release" in arguments:
        for name in release():
            print(f"released {name}")
    found = check()
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
