"""Snapshots: a state as bytes and back. Same ledger, same bytes.

Layout: `LKSS`, format u16, SHA-256 of the document, then the document: zlib-compressed JSON in the order things entered the
state (which the ledger fixes). Derived arrays are not in it: they are laid out anew. Called by `streams.decide` and by
followers; never reads or writes a file.
"""

import hashlib
import json
import struct
import zlib
from typing import Final

from schemas.errors import Corrupted
from schemas.records import JobAccepted, LinkRecorded, MixLearned, NodeRecorded
from streams.engine._classes import Holding
from streams.engine._costs import Costs
from streams.engine._line import Key, Line
from streams.engine._mix import Seen
from streams.engine._request import Request, request_of
from streams.engine._state import Job, State, Timers

# 3: the mix of requests is counted. A state of an older format has forgotten it, so it is not what its ledger means today: refused,
# and the ledger is read from its beginning.
FORMAT: Final = 3
_HEAD: Final = struct.Struct(">4sH32s")
_JOB_FIELDS: Final = tuple(f for f in Job.__slots__ if f not in ("ask", "request"))


def snapshot(state: State) -> bytes:
    """The state as bytes."""
    document = {
        "domain": state.domain,
        "seq": state.seq,
        "at": state.at,
        "nodes": list(state.descriptions.values()),
        "links": list(state.links.values()),
        "silent_since": list(state.silent_since.items()),
        "jobs": [[job.ask, [getattr(job, f) for f in _JOB_FIELDS]] for job in state.jobs.values()],
        "ended": list(state.ended),
        "holdings": [[node, [[*key, *h] for key, h in held.items()]] for node, held in state.holdings.items()],
        "gone": list(state.gone),
        "unreleased": [[*key, list(nodes)] for key, nodes in state.unreleased.items()],
        "due": list(state.due.at.items()),
        "releasing": [[*key, since] for key, since in state.releasing.items()],
        "quarantined": [[*key, at] for key, at in state.quarantined.items()],
        "limits": list(state.limits.at.items()),
        "attention": list(state.attention),
        "unexplained": list(state.unexplained),
        "told": list(state.told.items()),
        "stale": state.stale,
        "freed": list(state.freed),
        "mix": [
            state.mix.arrivals,
            state.mix.counted,
            [[kind, seen.jobs, seen.ended, seen.ran_ms] for kind, seen in state.mix.kinds.items()],
            state.mix.learned,
        ],
    }
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    return _HEAD.pack(b"LKSS", FORMAT, hashlib.sha256(raw).digest()) + zlib.compress(raw, 1)


def _tuples(values: list[object]) -> list[object]:
    return [tuple(v) if isinstance(v, list) else v for v in values]


def restore(data: bytes) -> State:
    """Bytes as a state. Raises `Corrupted` when they are damaged or of a format this version does not read."""
    if len(data) < _HEAD.size:
        raise Corrupted(f"a snapshot of {len(data)} bytes is too short to be one")
    magic, version, digest = _HEAD.unpack_from(data)
    if magic != b"LKSS":
        raise Corrupted("these bytes are not a snapshot")
    if version != FORMAT:
        raise Corrupted(f"the snapshot has format {version}, this version reads format {FORMAT}")
    try:
        raw = zlib.decompress(data[_HEAD.size :])
    except zlib.error as e:
        raise Corrupted(f"the snapshot is damaged: {e}") from e
    if hashlib.sha256(raw).digest() != digest:
        raise Corrupted("the snapshot fails its checksum")
    d = json.loads(raw)
    state = State(d["domain"])
    state.seq, state.at = d["seq"], d["at"]
    for row in d["nodes"]:
        node = NodeRecorded._make(_tuples(row))
        state.descriptions[node.node] = node
    for row in d["links"]:
        link = LinkRecorded._make(row)
        state.links[link.link] = link
    state.silent_since = dict(d["silent_since"])
    for ask_row, values in d["jobs"]:
        ask = JobAccepted._make(_tuples(ask_row))
        job = Job(ask, request_of(ask))
        for name, value in zip(_JOB_FIELDS, values, strict=True):
            setattr(job, name, tuple(value) if name in ("nodes", "members_on_node") else value)
        state.jobs[ask.job] = job
    state.order = Line(job.key for job in state.jobs.values() if job.phase == "pending")
    kinds: dict[Request, list[Key]] = {}
    for key in state.order:
        kinds.setdefault(state.jobs[key[-1]].request, []).append(key)
    state.line = {kind: Line(keys) for kind, keys in kinds.items()}
    for kind in kinds:
        state.needs.add(kind)
    state.ended = dict.fromkeys(d["ended"])
    for node_name, held in d["holdings"]:
        state.holdings[node_name] = {(job, attempt): Holding(*rest) for job, attempt, *rest in held}
    state.gone = dict.fromkeys(d["gone"])
    state.gone_held = sum(len(state.holdings[node_name]) for node_name in state.gone)
    state.unreleased = {(j, a): dict.fromkeys(nodes) for j, a, nodes in d["unreleased"]}
    state.due = Timers(d["due"])
    state.releasing = {(j, a, n): since for j, a, n, since in d["releasing"]}
    state.quarantined = {(j, a, n): at for j, a, n, at in d["quarantined"]}
    state.limits = Timers(d["limits"])
    state.attention = dict.fromkeys(d["attention"])
    state.unexplained = dict.fromkeys(d["unexplained"])
    state.told = {Request._make(_tuples(kind)): (code, reason) for kind, (code, reason) in d["told"]}
    state.stale = d["stale"]
    state.freed = dict.fromkeys(d["freed"])
    arrivals, counted, seen, learned = d["mix"]
    state.mix.arrivals, state.mix.counted = arrivals, counted
    state.mix.kinds = {Request._make(_tuples(kind)): Seen(*counts) for kind, *counts in seen}
    if learned is not None:
        state.mix.learned = MixLearned._make(_tuples(learned))
        state.costs = Costs(state.mix.learned)
    state.nodes_dirty = True
    return state
