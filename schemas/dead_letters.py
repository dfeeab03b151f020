"""Dead letters: a message that could not be used, whole, with its position and reason; and its way back.

Processors and landing call `dead_letter`; `lockstep dead-letter replay` calls `replay`. A message carries how often it was replayed
in a header, so that a loop (fix that does not fix, replay, refuse, replay, …) ends.
"""

from typing import Final

from schemas.codec import encode, schema_id_of
from schemas.errors import Poison, Refused
from schemas.messages import Block, Record
from schemas.records import DeadLetter

REPLAYS_HEADER: Final = "lockstep-replays"
MAX_REPLAYS: Final = 3
# Characters of a reason that are kept.
MAX_REASON: Final = 1_000


def replays_of(block: Block, i: int) -> int:
    """How often message `i` has been replayed; 0 when its header is absent or not a number."""
    for name, value in block.headers.get(i, ()):
        if name == REPLAYS_HEADER and value.isdigit():
            return int(value)
    return 0


def dead_letter(block: Block, i: int, poison: Poison, stage: str, now: int) -> Record:
    """Message `i` of a block as a record for the `dead-letter` topic."""
    value = block.values[i]
    letter = DeadLetter(
        block.topic, block.partition, block.offsets[i], now, stage, poison.code, _short(poison.reason), schema_id_of(value),
        block.keys[i], value, replays_of(block, i),
    )  # fmt: skip
    return Record("dead-letter", block.topic.encode(), encode(letter))


def _short(reason: str) -> str:
    """A reason may quote what was wrong, and that may be as large as the message."""
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}…"


def replay(letter: DeadLetter, limit: int = MAX_REPLAYS) -> Record:
    """The message as it came, for its own topic. Raises `Refused` when it has been replayed `limit` times already."""
    if letter.replays >= limit:
        raise Refused(
            f"{letter.topic}/{letter.partition}@{letter.offset} was replayed {letter.replays} times and refused each time "
            f"({letter.code}); mend its cause first, or raise the limit with --limit"
        )
    return Record(
        letter.topic, letter.key, letter.value, letter.partition,
        headers=((REPLAYS_HEADER, str(letter.replays + 1).encode()),),
    )  # fmt: skip
