"""What a source found in a file: nodes, jobs, and a remark for everything that could not be taken as it stands.

Shared by all sources and printed by `lockstep import`. A source never stops at a bad item: its neighbours pass.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.records import JobSubmitted, NodeRegistered

INT64_MAX: Final = (1 << 63) - 1
# Fields that are narrower than 64 bits in their schema, or bounded by the engine.
_MOST: Final = {"cards": 63, "cards_milli": 63_000, "members": 100_000, "priority": (1 << 31) - 1}


class Remark(NamedTuple):
    """One item, where it is in the file, and what would be right. `used`: it was taken, but not all of it."""

    where: str
    reason: str
    used: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """What the file cannot know: the scheduling domain, the site its nodes are at ('' when the file says), the time of
    reading in milliseconds (for items without a time of their own), and whether work that is over is wanted too."""

    domain: str
    at: int
    site: str = ""
    ended: bool = False


@dataclass(slots=True)
class Found:
    """Everything a file gave. `format` names what it was recognised as."""

    format: str
    nodes: list[NodeRegistered] = field(default_factory=list)
    jobs: list[JobSubmitted] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def take(self, row: NodeRegistered | JobSubmitted) -> None:
        """The item is taken. Raises `Unusable` when one of its numbers is larger than its field."""
        for name, value in zip(row._fields, row, strict=True):
            if isinstance(value, int) and abs(value) > _MOST.get(name, INT64_MAX):
                raise Unusable(f"{name} would be {value}; at most {_MOST.get(name, INT64_MAX)} can be")
        if isinstance(row, NodeRegistered):
            self.nodes.append(row)
        else:
            self.jobs.append(row)

    def unusable(self, where: str, reason: str) -> None:
        """The item is left out."""
        self.remarks.append(Remark(where, reason, used=False))

    def note(self, where: str, reason: str) -> None:
        """The item is taken, without this."""
        self.remarks.append(Remark(where, reason, used=True))


class Unusable(Exception):
    """Raised while one item is read, with the sentence for its remark."""
