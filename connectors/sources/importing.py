"""From a file to a `Found`: recognises what the file is and hands it to the source that reads it.

Called by `lockstep import`. The tool that the user named is checked against what the file says, so that a wrong word ends
in a hint and not in a heap of remarks.
"""

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import yaml

from connectors.sources import kubernetes, openb, slurm
from connectors.sources.found import Found, Setting
from schemas.errors import Refused

Tool = Literal["slurm", "kubernetes", "openb"]
MAX_BYTES: Final = 512 << 20
_WHAT: Final[dict[Tool, str]] = {
    "slurm": "JSON of sinfo, squeue or slurmrestd, scontrol show node or job, or sacct --parsable2",
    "kubernetes": "objects of kubectl get -o json or yaml, or manifests",
    "openb": "a node list or pod list of the openb trace as CSV",
}


def read_file(tool: Tool, path: Path, setting: Setting) -> Found:
    """Everything that `path` holds for `tool`. Raises `Refused` when it is nothing of the kind."""
    text = _text(path)
    documents = _documents(text)
    found = _recognise(text, documents)
    if found is None:
        raise Refused(f"{path.name} is not recognised; {_WHAT[tool]} would be right")
    if found != tool:
        raise Refused(f"{path.name} is of {found}, not of {tool}: try `lockstep import {found} {path}`")
    if tool == "openb":
        return openb.read(text, setting, path.name)
    if tool == "kubernetes":
        return kubernetes.read(documents, setting, path.name)
    if documents and isinstance(documents[0], dict):
        return slurm.read_json(documents[0], setting, path.name)
    if slurm.recognises_text(text) == "table":
        raise Refused(
            f"{path.name} is a table made for people; `sinfo --json`, `squeue --json` or `scontrol show node` say all"
        )
    return slurm.read_text(text, setting, path.name)


def _recognise(text: str, documents: Sequence[object]) -> Tool | None:
    if documents and slurm.recognises_json(documents[0]):
        return "slurm"
    if kubernetes.recognises(documents):
        return "kubernetes"
    if slurm.recognises_text(text):
        return "slurm"
    return "openb" if openb.recognises(text) else None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Refused(f"{path.name} is larger than {MAX_BYTES >> 20} MiB; split it")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as f:
                data = f.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise Refused(f"{path.name} is larger than {MAX_BYTES >> 20} MiB when unpacked; split it")
        return data.decode()
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise Refused(f"{path.name} looks compressed by gzip but is damaged: {e}") from e
    except OSError as e:
        raise Refused(f"{path} cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise Refused(f"{path.name} is not text (byte {e.start} is not UTF-8)") from e


def _documents(text: str) -> list[object]:
    """JSON or YAML documents, [] when it is neither."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            return [json.loads(text)]
        except json.JSONDecodeError as e:
            raise Refused(f"looks like JSON but is not: line {e.lineno}, column {e.colno}: {e.msg}") from e
    if "kind:" in text and "apiVersion:" in text:
        try:
            return list(yaml.safe_load_all(text))
        except yaml.YAMLError as e:
            raise Refused(f"looks like YAML but is not: {' '.join(str(e).split())}") from e
    return []
