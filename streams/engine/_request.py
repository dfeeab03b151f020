"""What one member of a job asks for, and the shape of its gang."""

from typing import NamedTuple

from schemas.records import JobAccepted


class Request(NamedTuple):
    """What one member asks for, and the shape of its gang: jobs with equal requests fit or fail alike."""

    members: int
    cards_milli: int
    card_models: tuple[str, ...]
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    adjacency: str


def request_of(ask: JobAccepted) -> Request:
    return Request(
        ask.members,
        ask.cards_milli,
        ask.card_models,
        ask.card_memory_bytes,
        ask.cpu_milli,
        ask.memory_bytes,
        ask.adjacency,
    )
