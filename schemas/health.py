"""What a worker says of itself; probes show it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: its loop turns. `ready`: it has its partitions and its state, and can do its work."""

    live: bool
    ready: bool
    detail: str
