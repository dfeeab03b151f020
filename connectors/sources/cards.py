"""Names of cards as other systems write them, as the accelerator table writes them. Used by every source."""

from typing import NamedTuple

from schemas.accelerators import candidates


class Card(NamedTuple):
    """A node's card model. `memory_bytes` 0 and `interconnect` '': not known."""

    model: str
    memory_bytes: int
    interconnect: str


NONE = Card("", 0, "")


def _family(written: str) -> str:
    """How a name that fits several rows is kept: in capitals, so that `a100` and `A100` are one."""
    return written.upper()


def card(written: str) -> Card:
    """The card that a node has. A name that fits several rows of the table is not narrowed by guessing: it stays a family's
    name, with what all its rows agree on. A name that fits none stays as it was written."""
    if not written:
        return NONE
    rows = candidates(written)
    if not rows:
        return Card(written, 0, "")
    sizes, links = {r.memory_bytes for r in rows}, {r.interconnect for r in rows}
    return Card(
        rows[0].model if len(rows) == 1 else _family(written),
        sizes.pop() if len(sizes) == 1 else 0,
        links.pop() if len(links) == 1 else "",
    )


def wanted(written: str) -> tuple[str, ...]:
    """The models that a job may use which asks for `written`: every row the name fits, and the family's name itself for
    nodes that say no more."""
    rows = candidates(written)
    if not rows:
        return (written,)
    return (rows[0].model,) if len(rows) == 1 else (*(r.model for r in rows), _family(written))
