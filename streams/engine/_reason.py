"""Amounts in the words of reasons: one way to write cards, cores and memory for people. Used by `_place`."""

from schemas.units import gibibytes


def times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def cards(milli: int) -> str:
    """Milli-cards as cards: 500 is '0.5 card', 8000 is '8 cards'."""
    return f"{milli / 1000:g} card" + ("" if milli <= 1000 else "s")


def cores(milli: int) -> str:
    """1/1000 of a core as cores."""
    return f"{milli / 1000:g} core" + ("" if milli == 1000 else "s")


def gib(amount: int) -> str:
    """Bytes as GiB of memory."""
    return f"{gibibytes(amount)} GiB"
