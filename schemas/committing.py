"""How a worker commits: the same commit again while the log says that this may help. Used by every worker that has a member."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from schemas.errors import TransactionAborted, Transient
from schemas.log import Member
from schemas.messages import Committed, Record, TopicPartition

TRIES: Final = 3


def commit_patiently(
    member: Member,
    positions: Mapping[TopicPartition, Committed],
    records: Sequence[Record] = (),
    between: Callable[[], None] = lambda: None,
) -> float:
    """`member.commit`, a few times where it is `Transient`, calling `between` before each but the first; seconds it took. Raises
    what the last try raised, and `TransactionAborted` at once: then nothing happened and the caller has to start from what
    is committed."""
    begun = time.monotonic()
    for tries in range(1, TRIES + 1):
        try:
            member.commit(positions, records)
            break
        except TransactionAborted:
            raise
        except Transient as e:
            if tries == TRIES:
                raise
            time.sleep(e.retry_after_ms / 1000)
            between()
    return time.monotonic() - begun
