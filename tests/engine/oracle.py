"""A second opinion, in plain Python and on purpose slow: what is held, what is free, what fits where.

It reads nothing but the ledger and shares no code with the engine. A grant is over only when its node's release was
recorded: what was granted on a node that is removed stays granted, and a node of that name that comes back has it still.
"""

from dataclasses import dataclass, field

from schemas.records import (
    CapacityQuarantined,
    JobAccepted,
    JobEnded,
    JobInterrupted,
    JobPlaced,
    LedgerEntry,
    NodeRecorded,
    ReceiptRecorded,
)

# From narrow to wide: the fields of a node that name its place.
LEVELS = ("node", "rack", "row", "data_centre", "site", "city", "region", "domain")


@dataclass
class Grant:
    cards: tuple[int, ...]
    card_milli: int
    cpu_milli: int
    memory_bytes: int


def bits(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(64) if mask >> i & 1)


@dataclass
class Books:
    """What a ledger says is held. `post` checks each entry against the laws as it comes."""

    nodes: dict[str, NodeRecorded] = field(default_factory=dict)
    asks: dict[str, JobAccepted] = field(default_factory=dict)
    grants: dict[tuple[str, int, str], Grant] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)  # job -> attempts made
    working: dict[str, int] = field(default_factory=dict)
    ended: dict[str, JobEnded] = field(default_factory=dict)
    quarantined: set[tuple[str, int, str]] = field(default_factory=set)
    # Releases that are not confirmed, of nodes that are there -> since when.
    awaited: dict[tuple[str, int, str], int] = field(default_factory=dict)
    seq: int = 0
    at: int = 0

    def post(self, e: LedgerEntry) -> None:
        assert e.seq == self.seq + 1, "seq is dense"
        assert e.at >= self.at, "time never goes back"
        self.seq, self.at = e.seq, e.at
        if isinstance(e, NodeRecorded):
            if e.state == "removed":
                self.nodes.pop(e.node, None)
                for key in [k for k in self.grants if k[2] == e.node]:
                    self.awaited.pop(key, None)
                    self.quarantined.discard(key)
            else:
                if e.node not in self.nodes:
                    self.awaited |= {(*key, e.node): e.at for key in self.over_on(e.node)}
                self.nodes[e.node] = e
        elif isinstance(e, JobAccepted):
            assert e.job not in self.asks, "a job is accepted once"
            self.asks[e.job] = e
            self.waiting[e.job] = 0
        elif isinstance(e, JobPlaced):
            self._placed(e)
        elif isinstance(e, JobInterrupted):
            assert self.working.pop(e.job) == e.attempt
            self._await(e)
            if e.requeued:
                self.waiting[e.job] = e.attempt
            else:
                self.working[e.job] = e.attempt  # its end must follow
        elif isinstance(e, JobEnded):
            assert e.job not in self.ended, "a job ends once"
            assert (self.waiting.pop(e.job, None) is None) != (self.working.pop(e.job, None) is None)
            self.ended[e.job] = e
            self._await(e)
        elif isinstance(e, ReceiptRecorded) and e.kind == "released":
            assert self.working.get(e.job) != e.attempt, "only an attempt that is over gives back"
            del self.grants[(e.job, e.attempt, e.node)]
            self.awaited.pop((e.job, e.attempt, e.node), None)
            self.quarantined.discard((e.job, e.attempt, e.node))
        elif isinstance(e, CapacityQuarantined):
            key = (e.job, e.attempt, e.node)
            assert key in self.grants
            assert key not in self.quarantined, "quarantined once"
            assert e.node in self.nodes, "nothing is quarantined on a node that is gone"
            assert key in self.awaited, "only what is awaited is overdue"
            del self.awaited[key]
            self.quarantined.add(key)

    def over_on(self, node: str) -> set[tuple[str, int]]:
        """Attempts that are over and still hold something on a node."""
        return {(j, a) for j, a, where in self.grants if where == node and self.working.get(j) != a}

    def holders(self, job: str, attempt: int) -> set[str]:
        """Nodes that still hold something of an attempt, there or not."""
        return {where for j, a, where in self.grants if (j, a) == (job, attempt)}

    def _await(self, e: JobInterrupted | JobEnded) -> None:
        for node in self.holders(e.job, e.attempt) & self.nodes.keys():
            key = (e.job, e.attempt, node)
            if key not in self.quarantined:
                self.awaited.setdefault(key, e.at)

    def _placed(self, e: JobPlaced) -> None:
        ask = self.asks[e.job]
        assert e.level == self.narrowest(ask), "the narrowest place that holds the gang"
        assert self.waiting.pop(e.job) == e.attempt - 1, "attempts count up, of waiting jobs only"
        self.working[e.job] = e.attempt
        assert sum(e.members_on_node) == ask.members, "a gang is placed whole"
        assert len(set(e.nodes)) == len(e.nodes)
        if ask.cards_milli:
            assert len({self.nodes[n].card_model for n in e.nodes}) == 1, "a gang has cards of one model"
        for node, members, mask in zip(e.nodes, e.members_on_node, e.card_masks, strict=True):
            d = self.nodes[node]
            assert d.state == "up"
            assert not ask.card_models or ask.cards_milli == 0 or d.card_model in ask.card_models
            assert members > 0
            cards = bits(mask)
            assert len(cards) == members * -(-ask.cards_milli // 1000), "each member has its cards"
            assert e.card_milli == min(1000, ask.cards_milli)
            free = self.free_cards(node)
            for card in cards:
                assert free[card] >= e.card_milli, f"card {card} of {node} is granted twice"
            grant = Grant(cards, e.card_milli, members * ask.cpu_milli, members * ask.memory_bytes)
            cpu, memory = self.free_rest(node)
            assert grant.cpu_milli <= cpu or ask.cpu_milli == 0, f"CPU of {node} is granted twice"
            assert grant.memory_bytes <= memory or ask.memory_bytes == 0, f"memory of {node} is granted twice"
            self.grants[(e.job, e.attempt, node)] = grant
        if ask.adjacency:
            # In one place of the asked level or of a narrower one, whose wider name may be unknown.
            upto = LEVELS[: LEVELS.index(ask.adjacency) + 1]
            assert any(len({self.place(n, level) for n in e.nodes}) == 1 for level in upto), (
                "a required level is never softened"
            )

    def place(self, node: str, level: str) -> tuple[str, ...]:
        """The place of a level a node is in. A place without a name is the node alone."""
        d = self.nodes[node]
        if level == "domain":
            return ()
        wide = LEVELS[LEVELS.index(level) : -1]
        name = tuple(str(getattr(d, field)) for field in wide)
        return name if name[0] else ("", node)

    def free_cards(self, node: str) -> list[int]:
        """Free milli-cards of each card, never below zero."""
        d = self.nodes[node]
        free = [1000 if card < d.cards_healthy else 0 for card in range(d.cards)] + [0] * (64 - d.cards)
        for (_, _, where), g in self.grants.items():
            if where == node:
                for card in g.cards:
                    free[card] -= g.card_milli
        return [max(0, f) for f in free[: d.cards]]

    def free_rest(self, node: str) -> tuple[int, int]:
        """Free CPU (1/1000 core) and memory (bytes); below zero on a node that shrank."""
        d = self.nodes[node]
        on_node = [g for (_, _, where), g in self.grants.items() if where == node]
        return d.cpu_milli - sum(g.cpu_milli for g in on_node), d.memory_bytes - sum(g.memory_bytes for g in on_node)

    def room(self, node: str, ask: JobAccepted) -> int:
        """Members that fit on a node now: counted by putting them there one by one."""
        d = self.nodes[node]
        if d.state != "up":
            return 0
        free = self.free_cards(node)
        if ask.cards_milli:
            if ask.card_models and d.card_model not in ask.card_models:
                return 0
            if d.card_memory_bytes * min(1000, ask.cards_milli) < ask.card_memory_bytes * 1000:
                return 0
        cpu, memory = self.free_rest(node)
        each = -(-ask.cards_milli // 1000)
        milli = min(1000, ask.cards_milli)
        count = 0
        while count < ask.members:
            if (ask.cpu_milli and cpu < ask.cpu_milli) or (ask.memory_bytes and memory < ask.memory_bytes):
                break
            usable = [card for card, f in enumerate(free) if f >= milli] if milli else []
            if len(usable) < each:
                break
            for card in usable[:each]:
                free[card] = -1  # a member's cards serve no other member of its gang
            cpu, memory, count = cpu - ask.cpu_milli, memory - ask.memory_bytes, count + 1
        return count

    def narrowest(self, ask: JobAccepted) -> str | None:
        """The narrowest level at which one place holds the whole gang within its adjacency; None: it does not fit."""
        room = {node: self.room(node, ask) for node in self.nodes}
        for level in LEVELS:
            sums: dict[tuple[str, ...], int] = {}
            for node, count in room.items():
                # The cards of a gang are all of one model.
                key = (*self.place(node, level), self.nodes[node].card_model if ask.cards_milli else "")
                sums[key] = sums.get(key, 0) + count
            if any(total >= ask.members for total in sums.values()):
                return level
            if level == ask.adjacency:
                return None
        return None
