"""Where a gang fits: the smallest place that holds it, the tightest of those, and its cards there; or why nowhere.

Vector scans over node arrays. Pure questions to the arrays: nothing here changes a state.
"""

from typing import Final, NamedTuple

import numpy as np

from streams.engine._state import I64, LEVELS, WHOLE, Bools, Nodes, Request

# From the narrowest place to the widest.
WIDENING: Final = (*reversed(LEVELS), "domain")
_NO_LIMIT: Final = np.int64(1 << 40)
_MISFIT: Final = np.int64(1 << 60)


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


def _allowed(nodes: Nodes, request: Request) -> Bools:
    """Nodes whose cards the job allows."""
    ok: Bools = np.ones(len(nodes.names), np.bool_)
    if request.cards_milli:
        ok = nodes.cards > 0
        if request.card_models:
            wanted = [i for i, m in enumerate(nodes.models) if m in request.card_models]
            ok = ok & np.isin(nodes.model, wanted)
        if request.card_memory_bytes:
            # A share of a card has the same share of its memory.
            share = min(request.cards_milli, WHOLE)
            ok = ok & (nodes.card_memory * share >= request.card_memory_bytes * WHOLE)
    return ok


def members_that_fit(nodes: Nodes, request: Request, *, empty: bool = False, cards_only: bool = False) -> I64:
    """Members that each node could hold now (`empty`: if nothing ran on it; `cards_only`: with CPU and memory unlimited)."""
    n = len(nodes.names)
    fit: I64
    if request.cards_milli == 0:
        fit = np.full(n, _NO_LIMIT)
    elif request.cards_milli < WHOLE:
        # One share of a gang per card: a mask says which cards, not how often.
        fit = (
            nodes.cards.astype(np.int64)
            if empty
            else (nodes.card_free >= request.cards_milli).sum(axis=1, dtype=np.int64)
        )
    else:
        whole = nodes.cards if empty else nodes.whole_free
        fit = (whole // (request.cards_milli // WHOLE)).astype(np.int64)
    if not cards_only:
        if request.cpu_milli:
            np.minimum(fit, (nodes.cpu if empty else nodes.cpu_free) // request.cpu_milli, out=fit)
        if request.memory_bytes:
            np.minimum(fit, (nodes.memory if empty else nodes.memory_free) // request.memory_bytes, out=fit)
    fit[~(_allowed(nodes, request) & nodes.takes)] = 0
    np.clip(fit, 0, request.members, out=fit)
    return fit


def find(nodes: Nodes, request: Request) -> Fit | NoFit:
    """1. count members per node; 2. narrowest level with a place that holds all; 3. tightest such place;
    4. fill it with as few nodes as possible; 5. choose cards on each."""
    if not len(nodes.names):
        return NoFit("no_nodes", "no node is registered and up")
    fit = members_that_fit(nodes, request)
    if request.members == 1:
        candidates = int(np.count_nonzero(fit))
        if candidates:
            row = _tightest_node(nodes, request, fit)
            reason = f"tightest of {candidates} nodes that fit"
            return Fit(
                (row,),
                (1,),
                (_mask(nodes, row, 1, request),),
                _share(request),
                "node",
                nodes.names[row],
                candidates,
                reason,
            )
    elif int(fit.sum()) >= request.members:
        for level in WIDENING:
            starts = nodes.starts[level]
            sums = np.add.reduceat(fit, starts)
            good = np.flatnonzero(sums >= request.members)
            if good.size:
                best = int(good[np.argmin(sums[good])])
                start = int(starts[best])
                stop = int(starts[best + 1]) if best + 1 < starts.size else len(nodes.names)
                return _fill(nodes, request, fit, start, stop, level, int(good.size))
            if level == request.adjacency:
                break
    return _why_not(nodes, request, fit)


def _share(request: Request) -> int:
    return min(request.cards_milli, WHOLE)


def _tightest_node(nodes: Nodes, request: Request, fit: I64) -> int:
    """Best fit: leave the least behind. Shared cards fill cards already begun; CPU-only work keeps off free cards."""
    left: I64
    if request.cards_milli == 0:
        left = nodes.whole_free.astype(np.int64) * 1000
    elif request.cards_milli < WHOLE:
        usable = np.where(nodes.card_free >= request.cards_milli, nodes.card_free, 1 << 20)
        left = (usable.min(axis=1) - request.cards_milli).astype(np.int64) * 64 + nodes.whole_free
    else:
        left = nodes.whole_free.astype(np.int64) - request.cards_milli // WHOLE
    # Equal ones: the least CPU left, in cores, so that a card is seldom left without CPU.
    cores = np.clip((nodes.cpu_free - request.cpu_milli) // 1000, 0, 4095)
    score = np.where(fit > 0, left * 4096 + cores, _MISFIT)
    return int(np.argmin(score))


def _mask(nodes: Nodes, row: int, members: int, request: Request) -> int:
    """Cards for these members on a node: lowest whole cards, or the fullest cards that still have the share."""
    if request.cards_milli == 0:
        return 0
    free = nodes.card_free[row]
    mask = 0
    if request.cards_milli < WHOLE:
        order = np.argsort(np.where(free >= request.cards_milli, free, 1 << 20), kind="stable")
        for card in order[:members].tolist():
            mask |= 1 << card
        return mask
    need = members * (request.cards_milli // WHOLE)
    for card in np.flatnonzero(free == WHOLE)[:need].tolist():
        mask |= 1 << card
    return mask


def _fill(nodes: Nodes, request: Request, fit: I64, start: int, stop: int, level: str, candidates: int) -> Fit:
    """Take nodes of one place, those that hold most members first, until all are placed."""
    part = fit[start:stop]
    order = np.argsort(-part, kind="stable")
    left, chosen = request.members, []
    for i in order.tolist():
        take = min(left, int(part[i]))
        chosen.append((start + i, take))
        left -= take
        if left == 0:
            break
    chosen.sort()
    rows = tuple(r for r, _ in chosen)
    members = tuple(m for _, m in chosen)
    masks = tuple(_mask(nodes, r, m, request) for r, m in chosen)
    place = nodes.places(level, start)
    spare = int(part.sum()) - request.members
    reason = f"tightest of {candidates} places of level {level} that hold {request.members} members; room for {spare} more stays"
    return Fit(rows, members, masks, _share(request), level, place, candidates, reason)


def _why_not(nodes: Nodes, request: Request, fit: I64) -> NoFit:
    """The most basic cause first: what could never be, then what is not free now."""
    if not nodes.takes.any():
        return NoFit("no_nodes", "no node is up and takes work")
    if not (_allowed(nodes, request) & nodes.takes).any():
        wanted = " or ".join(request.card_models) or f"cards with {request.card_memory_bytes} bytes"
        return NoFit("no_such_model", f"no node that is up has {wanted}")
    empty = members_that_fit(nodes, request, empty=True)
    if not empty.any():
        best = int(np.argmax(np.where(_allowed(nodes, request) & nodes.takes, nodes.cards, -1)))
        return NoFit(
            "too_big_for_any_node",
            f"a member needs {_cards(request.cards_milli)}, {_cores(request.cpu_milli)} and {_gib(request.memory_bytes)}; "
            f"the largest node has {int(nodes.cards[best])} cards, {_cores(int(nodes.cpu[best]))} and {_gib(int(nodes.memory[best]))}",
        )
    if int(empty.sum()) < request.members:
        return NoFit(
            "larger_than_the_map", f"{request.members} members; all nodes together hold {int(empty.sum())} when empty"
        )
    if request.adjacency:
        most = int(np.add.reduceat(empty, nodes.starts[request.adjacency]).max())
        if most < request.members:
            return NoFit(
                "adjacency_too_narrow",
                f"{request.members} members in one {request.adjacency}; the largest holds {most} when empty",
            )
    free = int(fit.sum())
    if free >= request.members:
        most = int(np.add.reduceat(fit, nodes.starts[request.adjacency or "domain"]).max())
        return NoFit(
            "scattered",
            f"{request.members} members in one {request.adjacency}; the best has room for {most}, all together for {free}",
        )
    by_cards = int(members_that_fit(nodes, request, cards_only=True).sum())
    needs = f"needs room for {request.members} × {_cards(request.cards_milli)}"
    if by_cards < request.members:
        return NoFit("short_of_cards", f"{needs}; there is room for {by_cards} now")
    allowed = _allowed(nodes, request) & nodes.takes
    cpu_ok = bool((nodes.cpu_free[allowed] >= request.cpu_milli).any())
    code = "short_of_memory" if cpu_ok and request.memory_bytes else "short_of_cpu"
    amount = _gib(request.memory_bytes) if code == "short_of_memory" else _cores(request.cpu_milli)
    return NoFit(code, f"{needs} with {amount} each; cards for {by_cards} are free, but with that only for {free}")


def _cards(milli: int) -> str:
    return "no card" if milli == 0 else f"{milli / 1000:g} card{'' if milli == 1000 else 's'}"


def _cores(milli: int) -> str:
    return f"{milli / 1000:g} cores"


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.4g} GiB memory"
