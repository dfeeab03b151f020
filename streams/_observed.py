"""What observe knows of the nodes of one partition, as columns: newest counter, healthy cards, when last heard.

Rows are added as nodes register and never move; a removed node's row stays, unregistered. Used by `streams.observe` only.
"""

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.records import NodeChanged, NodeRegistered

UNKNOWN: Final = -1
_SLACK: Final = 64


# How far a source's clock may be ahead of ours without being wrong.
SKEW_MS: Final = 60_000
Time = TypeVar("Time", int, npt.NDArray[np.int64])


def set_right(at: Time, known: Time, now: int) -> "bool | npt.NDArray[np.bool_]":
    """Whether a source's clock was ahead and no longer is: what it says now is older than what it said, and newer all the same.
    Without it a clock that once was ahead by hours would make its source unheard for as long."""
    return (known > now + SKEW_MS) & (at <= now + SKEW_MS)


def newer(counter: Time, at: Time, known_counter: Time, known_at: Time, now: int) -> "bool | npt.NDArray[np.bool_]":
    """Whether a sample is neither doubled nor overtaken. A lower counter with a later time is an agent that started anew."""
    return (counter > known_counter) | (at > known_at) | set_right(at, known_at, now)


class NodeTable:
    """Columns by row; `index` finds a node's row. `described[i]` is what was last told about it (None: never registered).

    `cards` and `told_healthy` repeat two of its figures as columns, `UNKNOWN` while the node is not registered.
    """

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.described: list[NodeChanged | None] = []
        self.counter: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        self.healthy: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        self.cards: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        self.told_healthy: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        # The node's own time of its newest sample.
        self.sampled_ms: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        # The time of its newest registration or removal.
        self.described_ms: npt.NDArray[np.int64] = np.full(_SLACK, UNKNOWN, np.int64)
        self.heard_ms: npt.NDArray[np.int64] = np.zeros(_SLACK, np.int64)
        self.silent: npt.NDArray[np.bool_] = np.zeros(_SLACK, np.bool_)
        self.registered: npt.NDArray[np.bool_] = np.zeros(_SLACK, np.bool_)

    def rows(self, names: list[str]) -> npt.NDArray[np.int64]:
        """Rows of these nodes; new names get new rows."""
        index = self.index
        try:
            return np.fromiter((index[n] for n in names), np.int64, len(names))
        except KeyError:
            for n in names:
                if n not in index:
                    index[n] = len(index)
                    self.described.append(None)
            if len(index) > self.counter.size:
                more = len(index) - self.counter.size + max(_SLACK, len(index) // 2)
                unknown = np.full(more, UNKNOWN, np.int64)
                self.counter = np.concatenate([self.counter, unknown])
                self.healthy = np.concatenate([self.healthy, unknown])
                self.cards = np.concatenate([self.cards, unknown])
                self.told_healthy = np.concatenate([self.told_healthy, unknown])
                self.sampled_ms = np.concatenate([self.sampled_ms, unknown])
                self.described_ms = np.concatenate([self.described_ms, unknown])
                self.heard_ms = np.concatenate([self.heard_ms, np.zeros(more, np.int64)])
                self.silent = np.concatenate([self.silent, np.zeros(more, np.bool_)])
                self.registered = np.concatenate([self.registered, np.zeros(more, np.bool_)])
            return np.fromiter((index[n] for n in names), np.int64, len(names))

    def remember(self, change: NodeChanged, heard_ms: int) -> None:
        """This is what was told about the node."""
        (i,) = self.rows([change.node])
        self.described[i] = change
        self.registered[i] = change.state != "removed"
        self.silent[i] = change.state == "silent"
        self.cards[i] = change.cards if self.registered[i] else UNKNOWN
        self.told_healthy[i] = change.cards_healthy
        self.heard_ms[i] = max(heard_ms, self.heard_ms[i])
        if change.counter >= 0 and (change.counter >= self.counter[i] or change.at > self.sampled_ms[i]):
            self.healthy[i] = change.cards_healthy
        self.counter[i] = max(self.counter[i], change.counter)
        self.sampled_ms[i] = max(self.sampled_ms[i], change.at)
        self.described_ms[i] = max(self.described_ms[i], change.described_at)

    def hear(self, now: int) -> None:
        """Count silence of every node from `now`: nobody was listening, or the clock was set back."""
        self.heard_ms[: len(self.index)] = now

    def earlier(self, now: int) -> None:
        """The clock went back to `now`: nobody was heard later than that."""
        np.minimum(self.heard_ms, now, out=self.heard_ms)

    def overdue(self, now: int, silence_ms: int) -> list[int]:
        """Rows of registered nodes that were not heard for too long and are not known to be silent."""
        n = len(self.index)
        late = self.registered[:n] & ~self.silent[:n] & (now - self.heard_ms[:n] > silence_ms)
        return [int(i) for i in np.flatnonzero(late)]


STATE_OF: Final = {"active": "up", "draining": "draining", "maintenance": "maintenance"}


def described(row: NodeRegistered, healthy: int, counter: int, reason: str) -> NodeChanged:
    """A registration as what is told about the node. NodeChanged carries the registration's fields 3 to 17 unchanged."""
    cards = row.cards if healthy == UNKNOWN else min(row.cards, healthy)
    return NodeChanged(
        row.node, row.at, row.domain, *row[3:18], state=STATE_OF[row.admin_state], cards_healthy=cards, reason=reason,
        counter=counter, described_at=row.at,
    )  # fmt: skip
