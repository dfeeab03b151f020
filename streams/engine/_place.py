"""Where a gang fits: the smallest place that holds it, the tightest of those, and its cards there; or why nowhere.

Vector scans over the node arrays, asked by `decide` and `inspect`. Pure questions: nothing here changes a state.
"""

from typing import Final, NamedTuple

import numpy as np

from streams.engine._nodes import I64, LEVELS, WHOLE, Bools, Nodes, Scan
from streams.engine._reason import cards, cores, gib, times
from streams.engine._state import Request

# From the narrowest place to the widest.
WIDENING: Final = (*reversed(LEVELS), "domain")
# More members than any gang has: what a node holds of members that need nothing. Sums over 10^6 nodes stay far below 2^63.
_NO_LIMIT: Final = 1 << 30
_MISFIT: Final = 1 << 60
# Cells of remembered scans, 16 bytes each: 64 MB; 3,300 kinds on 1,200 nodes, 32 on 125,000.
MAX_SCAN_CELLS: Final = 1 << 22
# Changed rows that are looked at one by one; beyond, the vectors are quicker.
FEW_ROWS: Final = 8
Rows = I64 | slice
ALL: Final = slice(None)
# Above any free amount of a card, milli-cards: cards without room for the share sort last.
_NO_ROOM: Final = 1 << 20


class Fit(NamedTuple):
    """A place for a whole gang: rows of nodes in topology order, members and card mask on each."""

    rows: tuple[int, ...]
    members: tuple[int, ...]
    masks: tuple[int, ...]
    card_milli: int
    level: str
    place: str
    candidates: int
    reason: str


class NoFit(NamedTuple):
    """Why a gang does not fit now: stable code, one sentence with figures."""

    code: str
    reason: str


def find(nodes: Nodes, request: Request, scans: dict[Request, Scan] | None = None) -> Fit | NoFit:
    """1. count members that fit on each node; 2. narrowest level with a place that holds all of them; 3. tightest such
    place; 4. fill it with as few nodes as possible; 5. choose cards on each. `scans`: what earlier searches found."""
    if not nodes.names:
        return NoFit("no_nodes", "no node is registered")
    scan = _scan(nodes, request, scans if scans is not None else {})
    members = request.members
    row = int(scan.score.argmin())
    if scan.score[row] < _MISFIT:
        candidates = int(np.count_nonzero(scan.score < _MISFIT))
        mask = _mask(nodes, row, members, request)
        reason = f"tightest of {candidates} nodes that can hold it" if candidates > 1 else "only node that can hold it"
        milli = min(request.cards_milli, WHOLE)
        return Fit((row,), (members,), (mask,), milli, "node", nodes.names[row], candidates, reason)
    fit = scan.fit
    if members > 1 and request.adjacency != "node" and int(fit.sum()) >= members:
        for level in WIDENING[1:]:
            starts = nodes.starts[level]
            sums = np.add.reduceat(fit, starts)
            good = np.flatnonzero(sums >= members)
            if good.size:
                best = int(good[np.argmin(sums[good])])
                start = int(starts[best])
                stop = int(starts[best + 1]) if best + 1 < starts.size else len(nodes.names)
                return _fill(nodes, request, fit, start, stop, level, int(good.size))
            if level == request.adjacency:
                break
    return _why_not(nodes, request, fit)


def _scan(nodes: Nodes, request: Request, scans: dict[Request, Scan]) -> Scan:
    """What fits on each node: the last answer with the changed rows looked at again, or all rows."""
    known = scans.get(request)
    if known is not None:
        changed = nodes.changed_since(known.version)
        if changed is not None and len(changed) * 8 < len(nodes.names) + 64:
            distinct = set(changed)
            if len(distinct) <= FEW_ROWS:
                for row in distinct:
                    known.fit[row], known.score[row] = _look_at(nodes, request, row)
            else:
                rows = np.fromiter(distinct, np.int64)
                fit = members_that_fit(nodes, request, rows)
                known.fit[rows] = fit
                known.score[rows] = _tightness(nodes, request, rows, fit)
            known.version = nodes.version
            return known
    fit = members_that_fit(nodes, request)
    scan = Scan(nodes.version, fit, _tightness(nodes, request, ALL, fit))
    scans.pop(request, None)
    while len(scans) * len(nodes.names) > MAX_SCAN_CELLS:
        del scans[next(iter(scans))]
    scans[request] = scan
    return scan


def _look_at(nodes: Nodes, request: Request, row: int) -> tuple[int, int]:
    """`members_that_fit` and `_tightness` of one row, in plain integers: for a row or two the vectors' set-up is most of the cost."""
    if not (nodes.takes[row] and _may(nodes, request)[row]):
        return 0, _MISFIT
    milli, cpu_free = request.cards_milli, int(nodes.cpu_free[row])
    left = int(nodes.whole_free[row])
    if milli == 0:
        fit = _NO_LIMIT
    elif milli >= WHOLE:
        fit = left // (milli // WHOLE)
    else:
        room = [f for f in nodes.card_free[row].tolist() if f >= milli]
        fit = len(room)
        left += 64 * min(room, default=_NO_ROOM)
    if request.cpu_milli:
        fit = min(fit, cpu_free // request.cpu_milli)
    if request.memory_bytes:
        fit = min(fit, int(nodes.memory_free[row]) // request.memory_bytes)
    fit = max(fit, 0)
    if fit < request.members:
        return fit, _MISFIT
    return fit, left * 4096 + min(max(cpu_free // 1000, 0), 4095)


def _may(nodes: Nodes, request: Request) -> Bools:
    """Nodes whose cards the job allows. A share of a card has the same share of its memory."""
    share = min(request.cards_milli, WHOLE)
    memory = -(-request.card_memory_bytes * WHOLE // share) if share else 0
    return nodes.allowed(request.card_models, memory, needs_card=share > 0)


def members_that_fit(
    nodes: Nodes,
    request: Request,
    rows: Rows = ALL,
    *,
    empty: bool = False,
    everywhere: bool = False,
    cpu: bool = True,
    memory: bool = True,
) -> I64:
    """Members that each node (of `rows`) could hold now. `empty`: if nothing ran on it; `everywhere`: also where no new work
    is taken; not `cpu`, not `memory`: were those unlimited."""
    fit: I64
    if request.cards_milli == 0:
        fit = np.full(nodes.cards[rows].shape, _NO_LIMIT, np.int64)
    elif request.cards_milli >= WHOLE:
        fit = (nodes.cards if empty else nodes.whole_free)[rows] // (request.cards_milli // WHOLE)
    elif empty:
        fit = nodes.cards[rows].copy()
    else:
        # Shares of one gang sit on cards of their own: a mask says which cards, not how often.
        fit = np.count_nonzero(nodes.card_free[rows] >= request.cards_milli, axis=1)
    if cpu and request.cpu_milli:
        np.minimum(fit, (nodes.cpu if empty else nodes.cpu_free)[rows] // request.cpu_milli, out=fit)
    if memory and request.memory_bytes:
        np.minimum(fit, (nodes.memory if empty else nodes.memory_free)[rows] // request.memory_bytes, out=fit)
    may = _may(nodes, request)[rows]
    fit *= may if everywhere else may & nodes.takes[rows]
    # Below zero: a node that shrank owes what it no longer has.
    np.maximum(fit, 0, out=fit)
    return fit


def _tightness(nodes: Nodes, request: Request, rows: Rows, fit: I64) -> I64:
    """Best fit, least first: leave the least behind. Shared cards fill cards already begun; CPU-only work keeps off free
    cards. `_MISFIT` where the gang does not fit."""
    left = nodes.whole_free[rows]
    if 0 < request.cards_milli < WHOLE:
        free = nodes.card_free[rows]
        left = left + 64 * np.where(free >= request.cards_milli, free, _NO_ROOM).min(axis=1).astype(np.int64)
    # Equal ones: the least CPU left, in cores, so that a card is seldom left without CPU.
    cores_left = np.clip(nodes.cpu_free[rows] // 1000, 0, 4095)
    return np.where(fit >= request.members, left * 4096 + cores_left, _MISFIT)


def _mask(nodes: Nodes, row: int, members: int, request: Request) -> int:
    """Cards for these members on a node: lowest whole cards, or the fullest cards that still have the share."""
    milli = request.cards_milli
    if milli == 0:
        return 0
    free: list[int] = nodes.card_free[row].tolist()
    if milli < WHOLE:
        fullest = sorted((f, card) for card, f in enumerate(free) if f >= milli)
        return sum(1 << card for _, card in fullest[:members])
    need = members * (milli // WHOLE)
    mask = 0
    for card, f in enumerate(free):
        if need and f == WHOLE:
            mask |= 1 << card
            need -= 1
    return mask


def _fill(nodes: Nodes, request: Request, fit: I64, start: int, stop: int, level: str, candidates: int) -> Fit:
    """Take nodes of one place, those that hold most members first; the last one is the tightest that holds the rest."""
    part = fit[start:stop]
    order = np.argsort(-part, kind="stable")[: np.count_nonzero(part)]
    held = part[order]
    # Nodes to fill whole: while the sum stays within the gang.
    full = int(np.searchsorted(np.cumsum(held), request.members, side="right"))
    rest = request.members - int(held[:full].sum())
    chosen = [(start + int(i), int(part[i])) for i in order[:full]]
    if rest:
        # Of the others, in falling order, the last that holds the rest.
        last = full + int(np.searchsorted(-held[full:], -rest, side="right")) - 1
        chosen.append((start + int(order[last]), rest))
    chosen.sort()
    masks = tuple([_mask(nodes, r, m, request) for r, m in chosen])
    room = int(part.sum())
    spare = (
        f"room for {room - request.members} more stays" if request.cards_milli else "CPU and memory were all it needs"
    )
    of = f"tightest of {candidates} places" if candidates > 1 else "only place"
    reason = f"{of} of level {level} that can hold {times(request.members, 'member')}; {spare}"
    rows, members = tuple([r for r, _ in chosen]), tuple([m for _, m in chosen])
    place = nodes.place(level, start)
    return Fit(rows, members, masks, min(request.cards_milli, WHOLE), level, place, candidates, reason)


def _why_not(nodes: Nodes, request: Request, fit: I64) -> NoFit:
    """The most basic cause first: what could never be, then who is away, then what is not free now."""
    members = request.members
    may = _may(nodes, request)
    if not may.any():
        wanted = " or ".join(request.card_models) or "a card"
        memory = f" with {gib(request.card_memory_bytes)} for each share" if request.card_memory_bytes else ""
        return NoFit("no_such_model", f"no node of the map has {wanted}{memory}")
    most = members_that_fit(nodes, request, empty=True, everywhere=True)
    if not most.any():
        best = int(np.argmax(np.where(may, nodes.cards * (1 << 40) + np.minimum(nodes.cpu, 1 << 39), -1)))
        return NoFit(
            "too_big_for_any_node",
            f"a member needs {_member(request)}; the largest node that may be used has {times(int(nodes.cards[best]), 'card')}, "
            f"{cores(int(nodes.cpu[best]))} and {gib(int(nodes.memory[best]))}",
        )
    level = request.adjacency or "domain"
    if int(most.sum()) < members:
        return NoFit(
            "larger_than_the_map", f"{times(members, 'member')}; all nodes together hold {int(most.sum())} when empty"
        )
    largest = int(np.add.reduceat(most, nodes.starts[level]).max())
    if largest < members:
        return NoFit(
            "adjacency_too_narrow",
            f"{times(members, 'member')} in one {level}; the largest holds {largest} when empty",
        )
    most = members_that_fit(nodes, request, empty=True)
    largest = int(np.add.reduceat(most, nodes.starts[level]).max())
    if largest < members:
        away = int(np.count_nonzero(may & ~nodes.takes))
        return NoFit(
            "nodes_away",
            f"{times(away, 'node')} that could hold {'it' if members == 1 else 'members'} {'is' if away == 1 else 'are'} silent, "
            f"draining or in maintenance; the others hold {largest} of {members} when empty",
        )
    free = int(fit.sum())
    if free >= members:
        largest = int(np.add.reduceat(fit, nodes.starts[level]).max())
        return NoFit(
            "scattered",
            f"{times(members, 'member')} in one {level}; the best has room for {largest} now, all together for {free}",
        )
    needs = f"needs {times(members, 'member')} × {_member(request)}"
    by_cards = int(members_that_fit(nodes, request, cpu=False, memory=False).sum())
    if by_cards < members:
        return NoFit("short_of_cards", f"{needs}; there are free cards for {by_cards} now")
    enough = f"free cards for {by_cards}, but" if request.cards_milli else ""
    for code, what, sum_of in (
        ("short_of_cpu", "CPU", int(members_that_fit(nodes, request, memory=False).sum())),
        ("short_of_memory", "memory", int(members_that_fit(nodes, request, cpu=False).sum())),
    ):
        if sum_of < members:
            return NoFit(code, f"{needs}; {enough} nodes with enough {what} too hold {sum_of} now".replace(";  ", "; "))
    return NoFit(
        "short_of_cpu_and_memory",
        f"{needs}; {enough} nodes with enough CPU and memory hold {free} now".replace(";  ", "; "),
    )


def _member(request: Request) -> str:
    """What one member asks for, for people."""
    asked = [cards(request.cards_milli)] if request.cards_milli else []
    asked += [cores(request.cpu_milli)] if request.cpu_milli else []
    asked += [gib(request.memory_bytes)] if request.memory_bytes else []
    return " + ".join(asked) or "nothing"
