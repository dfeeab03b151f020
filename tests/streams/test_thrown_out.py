"""What a clock makes (silence) is fenced by the group like what messages make: a member that was thrown out tells nothing."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from connectors.log.memory import MemoryLog
from schemas.errors import Fenced, TransactionAborted
from schemas.log import Log
from schemas.messages import Committed, Record, TopicPartition
from schemas.records import NodeChanged
from schemas.topics import TOPICS
from streams.observe import Observe
from streams.runner import ProcessorWorker
from tests.streams.facts import NOW, drive, read, registered, sample, write

S = 1_000
IMPATIENT = {"consumer.max.poll.interval.ms": "1500", "consumer.session.timeout.ms": "1500"}


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def logs(request: pytest.FixtureRequest) -> Iterator[tuple[Log, Log]]:
    """Two clients of one log that throws out who is silent for a second or so."""
    first: Log
    if request.param == "memory":
        shared = MemoryLog()
        first, second = MemoryLog(shared, session_ms=600), MemoryLog(shared, session_ms=600)
    else:
        from connectors.log.kafka import KafkaLog

        bootstrap = request.getfixturevalue("broker").bootstrap
        prefix = f"thrown-out-{os.getpid()}-{time.monotonic_ns()}."
        first, second = (KafkaLog(bootstrap, prefix, IMPATIENT) for _ in range(2))  # type: ignore[assignment]
    first.provision(TOPICS, dry_run=False)
    yield first, second
    first.close()
    second.close()


@pytest.mark.parametrize("heard_before", [True, False])
def test_silence_noticed_by_a_member_that_was_thrown_out_is_not_told(
    logs: tuple[Log, Log], *, heard_before: bool
) -> None:
    """`heard_before` False: it restored the node from `changes` and never committed a position of its own."""
    log, other = logs
    older = ProcessorWorker(log, lambda: Observe("a"))
    if heard_before:
        write(log, [registered(), sample()])
        drive(older, NOW, 300)
    else:
        write(log, [_told()])
        drive(older, NOW, 1_000)
    newer = ProcessorWorker(other, lambda: Observe("b"))
    member = older._member
    assert member is not None
    commit, late = member.commit, list[int]()

    def stands_still(positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        """Until the other one has all partitions and has heard the node."""
        late.append(len(records))
        end = time.monotonic() + 40
        while newer._member is None or len(newer._member.assignment()) < 4 * 4:
            assert time.monotonic() < end
            newer.step(NOW + 100 * S, 200)
        write(other, [sample(counter=2, at=NOW + 100 * S)])
        drive(newer, NOW + 100 * S, 300)
        commit(positions, records)

    member.commit = stands_still  # type: ignore[method-assign]
    with pytest.raises((TransactionAborted, Fenced)):
        older.step(NOW + 100 * S, 0)
    assert late == [1]
    assert "silent" not in {c.state for c in read(other, "changes") if isinstance(c, NodeChanged)}
    older.reset()
    newer.close(2_000)


def _told() -> NodeChanged:
    row = registered()
    return NodeChanged(
        row.node, row.at, row.domain, *row[3:18], state="up", cards_healthy=8, reason="registered", counter=1
    )
