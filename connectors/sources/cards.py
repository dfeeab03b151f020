"""Names of cards as other systems write them, as the accelerator table writes them. Used by every source."""

from typing import NamedTuple

from schemas.accelerators import lookup

GIB = 1 << 30


class Card(NamedTuple):
    """A card model by its name in the accelerator table, or as it was written when the table has no such card;
    `memory_bytes` and `interconnect` are 0 and '' when the table does not say."""

    model: str
    memory_bytes: int
    interconnect: str


def card(written: str) -> Card:
    """The card that `written` means. A name that fits several rows of the table stays as it was written, so that nodes and
    jobs that write it alike still find each other."""
    known = lookup(written)
    if known is None:
        return Card(written, 0, "")
    return Card(known.model, known.memory_bytes, known.interconnect)
