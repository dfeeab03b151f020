"""Slurm: what `sinfo`, `squeue`, `scontrol`, `slurmrestd` and `sacct` print, as registrations and submissions.

JSON of Slurm 21 to 24 (a number may be bare or `{"set", "infinite", "number"}`, a state a word or a list), `scontrol show
node|job` as text, `sacct --parsable2` with a header line. This module knows the outer forms; `_slurm_items` reads one node
or one job, whatever form it came in. Called by `connectors.sources.importing`.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Final

from connectors.sources._slurm_items import Item, job, node
from connectors.sources.found import Found, Setting, Unusable

_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_STEP: Final = re.compile(r"^\d+(?:_\d+|_\[[^\]]*\])?(?:\+\d+)?\.")
SACCT_NEEDS: Final = ("JobID", "State", "Submit", "ReqCPUS", "ReqMem", "ReqNodes")


def recognises_json(value: object) -> bool:
    """Is this decoded JSON an answer of Slurm's?"""
    return isinstance(value, Mapping) and "meta" in value and ("nodes" in value or "jobs" in value)


def recognises_text(text: str) -> str:
    """'nodes', 'jobs' or 'sacct' for text of those commands, 'table' for a table made for people, else ''."""
    for line in text.splitlines():
        if not line.strip():
            continue
        if line.startswith("NodeName="):
            return "nodes"
        if line.startswith("JobId="):
            return "jobs"
        header = line.split("|")
        if "JobID" in header and "State" in header:
            return "sacct"
        if "NODELIST" in line or "JOBID" in line:
            return "table"
        return ""
    return ""


def read_json(value: Mapping[str, object], setting: Setting, name: str) -> Found:
    """Nodes and jobs of a JSON answer."""
    found = Found("slurm " + " and ".join(k for k in ("nodes", "jobs") if k in value))
    for kind, one in (("nodes", _node), ("jobs", _job)):
        items = value.get(kind, [])
        if not isinstance(items, list):
            found.unusable(f"{name}: {kind}", f"is a {type(items).__name__}; a list would be right")
            continue
        for i, raw in enumerate(items):
            where = f"{name}: {kind}[{i}]"
            if isinstance(raw, Mapping):
                one(Item({str(k): _plain(v) for k, v in raw.items()}, where), setting, found)
            else:
                found.unusable(where, "is not an object")
    return found


def read_text(text: str, setting: Setting, name: str) -> Found:
    """Nodes or jobs of `scontrol show`, or jobs of `sacct --parsable2`."""
    kind = recognises_text(text)
    if kind == "sacct":
        return _read_sacct(text, setting, name)
    found = Found(f"scontrol show {kind[:-1]}")
    for line, record in _records(text):
        where = f"{name}:{line}"
        if kind == "nodes":
            _node(Item(_node_fields(record), where), setting, found)
        else:
            _job(Item(_job_fields(record), where), setting, found)
    return found


def _node(item: Item, setting: Setting, found: Found) -> None:
    try:
        found.take(node(item, setting, found))
    except Unusable as e:
        found.unusable(item.called("name", "node"), str(e))


def _job(item: Item, setting: Setting, found: Found) -> None:
    try:
        for row in job(item, setting, found):
            found.take(row)
    except Unusable as e:
        found.unusable(item.called("job_id", "job"), str(e))


def _plain(value: object) -> object:
    """`{"set": true, "infinite": false, "number": 5}` is 5; not set is None, infinite is 'UNLIMITED'."""
    if isinstance(value, Mapping) and "number" in value and "set" in value:
        if value.get("infinite"):
            return "UNLIMITED"
        return value["number"] if value["set"] else None
    return value


# --- scontrol show -----------------------------------------------------------------------------------------------


def _records(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Records of `scontrol show`, one to a line (`--oneliner`) or over several lines, with the line each begins at."""
    begun = 0
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("NodeName=", "JobId=")):
            if lines:
                yield begun, _fields(" ".join(lines))
            begun, lines = number, [line]
        elif lines:
            lines.append(line.strip())
    if lines:
        yield begun, _fields(" ".join(lines))


def _fields(record: str) -> dict[str, str]:
    """`Key=value` pairs. A value may hold blanks (`OS=Linux 6.1`) and `=` (`TRES=cpu=4,mem=1G`)."""
    marks = list(_FIELD.finditer(record))
    fields: dict[str, str] = {}
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        value = record[mark.end() : after.start() if after else len(record)].strip()
        if mark[1] not in fields:
            fields[mark[1]] = "" if value in ("(null)", "N/A", "n/a", "None") else value
    return fields


def _node_fields(r: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": r.get("NodeName"), "cpus": r.get("CPUTot"), "real_memory": r.get("RealMemory"), "gres": r.get("Gres", ""),
        "state": r.get("State", ""), "reason": r.get("Reason", ""), "temporary_disk": r.get("TmpDisk", "0"),
        "features": r.get("AvailableFeatures", ""), "partitions": [p for p in r.get("Partitions", "").split(",") if p],
    }  # fmt: skip


def _job_fields(r: Mapping[str, str]) -> dict[str, object]:
    return {
        "job_id": r.get("JobId"), "array_job_id": r.get("ArrayJobId", "0"), "array_task_id": r.get("ArrayTaskId"),
        "name": r.get("JobName", ""), "user_name": r.get("UserId", "").split("(")[0], "partition": r.get("Partition", ""),
        "priority": r.get("Priority"), "job_state": r.get("JobState", ""), "dependency": r.get("Dependency", ""),
        "time_limit": r.get("TimeLimit"), "submit_time": r.get("SubmitTime"), "node_count": r.get("NumNodes", "1").split("-")[0],
        "cpus": r.get("NumCPUs"), "tasks": r.get("NumTasks"), "tres_per_node": r.get("TresPerNode", ""),
        "tres_per_job": r.get("TresPerJob", ""), "tres_per_task": r.get("TresPerTask", ""), "features": r.get("Features", ""),
        "memory_per_node": r.get("MinMemoryNode"), "memory_per_cpu": r.get("MinMemoryCPU"),
        "tres_req_str": r.get("ReqTRES") or r.get("TRES", ""), "exit_code": r.get("ExitCode", ""),
    }  # fmt: skip


# --- sacct ---------------------------------------------------------------------------------------------------------


def _read_sacct(text: str, setting: Setting, name: str) -> Found:
    found = Found("sacct --parsable2")
    rows = csv.DictReader(io.StringIO(text), delimiter="|", quoting=csv.QUOTE_NONE)
    missing = [c for c in SACCT_NEEDS if c not in (rows.fieldnames or ())]
    if missing:
        found.unusable(f"{name}:1", f"columns {', '.join(missing)} are missing; name them with sacct --format")
        return found
    seen: dict[str, int] = {}
    for row in rows:
        where = f"{name}:{rows.line_num}"
        if _STEP.match(row["JobID"] or ""):
            continue  # a step is a part of its job, which has a line of its own
        if row["JobID"] in seen:
            found.unusable(f"{where} (job {row['JobID']})", f"the job is in line {seen[row['JobID']]} already")
            continue
        seen[row["JobID"]] = rows.line_num
        _job(Item(_sacct_fields(row), where), setting, found)
    return found


def _sacct_fields(r: Mapping[str, str]) -> dict[str, object]:
    # What was given says what was asked; a job that waits was given nothing, and only ReqTRES tells.
    tres = r.get("ReqTRES") or r.get("AllocTRES") or ""
    return {
        "job_id": r["JobID"], "name": r.get("JobName") or "", "user_name": r.get("User") or "",
        "partition": r.get("Partition") or "", "priority": r.get("Priority"), "job_state": r["State"],
        "time_limit": r.get("TimelimitRaw") or r.get("Timelimit"), "submit_time": r["Submit"],
        "node_count": r["ReqNodes"], "cpus": r["ReqCPUS"], "memory_sacct": r["ReqMem"], "tres_req_str": tres,
        "run_s": r.get("ElapsedRaw"), "exit_code": r.get("ExitCode") or "", "cards_unknown": "" if tres else "yes",
    }  # fmt: skip
