"""Samples of many nodes at one moment, encoded in bulk.

Most nodes' samples differ from their last one in time and counter only: a node's encoded sample is kept, and only those two
fields in its middle are put in anew. Used by `infra.sim.infrastructure` only.
"""

from typing import Final

from schemas.codec import encoder, zigzag
from schemas.records import NodeRegistered, NodeTelemetry

_HEADER: Final = 5  # the wire format's magic byte and schema id
# Watts of a node without work, and of one of its cards idle and busy: plausible figures, not measured ones.
NODE_WATTS: Final = 300.0
IDLE_WATTS: Final = 60.0
BUSY_WATTS: Final = 400.0
# A card that works is 90 % busy and has 80 % of its memory full.
BUSY_PCT: Final = 90.0
MEMORY_SHARE: Final = 0.8


class Load(tuple[int, int, int]):
    """What runs on a node: milli-cards, 1/1000 core, bytes."""

    __slots__ = ()


IDLE: Final = Load((0, 0, 0))


class Samples:
    """Encodes a node's sample; remembers each node's last."""

    def __init__(self) -> None:
        self._encode = encoder(NodeTelemetry)
        self._known: dict[str, tuple[NodeRegistered, Load, bytes, bytes]] = {}

    def at(self, now: int, row: NodeRegistered, load: Load) -> bytes:
        """The encoded sample of a node at `now` (milliseconds), which is its counter too: it grows over restarts."""
        # `at` and `counter` stand beside each other, behind the name.
        stamp = zigzag(now) * 2
        known = self._known.get(row.node)
        if known is None or known[0] is not row or known[1] != load:
            whole = self._encode(_sample(now, row, load))
            name = row.node.encode()
            begin = _HEADER + len(zigzag(len(name))) + len(name)
            known = (row, load, whole[:begin], whole[begin + len(stamp) :])
            self._known[row.node] = known
        return known[2] + stamp + known[3]


def _sample(now: int, row: NodeRegistered, load: Load) -> NodeTelemetry:
    cards_milli, cpu_milli, memory_bytes = load
    share = min(1.0, cards_milli / (row.cards * 1000)) if row.cards else 0.0
    return NodeTelemetry(
        row.node, now, now, row.cards, BUSY_PCT * share, int(row.card_memory_bytes * row.cards * MEMORY_SHARE * share),
        min(cpu_milli, row.cpu_milli), min(memory_bytes, row.memory_bytes),
        NODE_WATTS + row.cards * (IDLE_WATTS + (BUSY_WATTS - IDLE_WATTS) * share),
    )  # fmt: skip
