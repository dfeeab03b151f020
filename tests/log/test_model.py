"""Random histories on the embedded log and in memory at once: whatever is done, both and a plain list agree.

The model is ten lines of dictionaries, written from the protocol and not from the code. Fencing, seeking, retention from
the middle of a batch and reopening of the file are steps like any other.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from connectors.log._local import LocalLog
from connectors.log.embedded import EmbeddedLog
from connectors.log.memory import MemoryLog
from schemas.errors import Fenced
from schemas.log import Member
from schemas.messages import Committed, Headers, Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec
from tests.log.home import Ears

PARTITIONS = 2
SPECS = [
    TopicSpec("in", (JobSubmitted,), "job", PARTITIONS, "delete", -1, (), (), "A test"),
    TopicSpec("out", (JobSubmitted,), "job", PARTITIONS, "compact", -1, (), (), "A test"),
]
TPS = [TopicPartition(s.name, p) for s in SPECS for p in range(PARTITIONS)]
Message = tuple[int, bytes | None, bytes | None, Headers]

bodies = st.one_of(st.none(), st.binary(max_size=40))
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple)
records = st.lists(
    st.builds(
        Record, topic=st.sampled_from(["in", "out"]), key=st.sampled_from([None, b"", b"a", b"b", b"c"]), value=bodies,
        partition=st.sampled_from(range(PARTITIONS)), headers=headers,
    ),
    max_size=12,
)  # fmt: skip


class Homes(RuleBasedStateMachine):
    """One log in memory, one in a file, and what they should hold."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-model-"))
        self.logs: list[LocalLog] = [MemoryLog(), self._file()]
        for log in self.logs:
            log.provision(SPECS, dry_run=False)
        self.model: dict[TopicPartition, list[Message]] = {tp: [] for tp in TPS}
        self.ends = dict.fromkeys(TPS, 0)
        self.positions: dict[TopicPartition, Committed] = {}
        self.stale: list[list[Member]] = []
        self.read_to = dict.fromkeys(TPS[:PARTITIONS], 0)
        self.members = self._join()

    def _file(self) -> EmbeddedLog:
        return EmbeddedLog(self.folder, "normal", upkeep_every_ms=0)

    def _join(self) -> list[Member]:
        members = [log.member("g", ["in"], Ears(), owner="slot", assign_all=True) for log in self.logs]
        for member in members:
            member.poll(0, 0)
        self.read_to = {tp: self.positions.get(tp, Committed(0)).offset for tp in TPS[:PARTITIONS]}
        return members

    def _remember(self, batch: list[Record]) -> None:
        for r in batch:
            tp = TopicPartition(r.topic, r.partition or 0)
            self.model[tp].append((self.ends[tp], r.key, r.value, r.headers))
            self.ends[tp] += 1

    @rule(batch=records)
    def append(self, batch: list[Record]) -> None:
        for log in self.logs:
            appender = log.appender("a")
            for record in batch:
                appender.send(record)
            appender.close(1_000)
        self._remember(batch)

    @rule(most=st.integers(1, 9))
    def poll(self, most: int) -> None:
        expected = {tp: [m for m in self.model[tp] if m[0] >= self.read_to[tp]] for tp in self.read_to}
        taken = []
        for member in self.members:
            blocks = member.poll(most, 0)
            assert sum(map(len, blocks)) == min(most, sum(map(len, expected.values())))
            got: dict[TopicPartition, list[bytes | None]] = {}
            reached = dict(self.read_to)
            for block in blocks:
                got.setdefault(block.tp, []).extend(block.values)
                reached[block.tp] = block.next_offset
            for tp, found in got.items():
                assert found == [m[2] for m in expected[tp]][: len(found)]
            taken.append((got, reached))
        assert taken[0] == taken[1]
        self.read_to = taken[0][1]
        for member in self.members:
            assert member.lag() == {tp: self.ends[tp] - at for tp, at in self.read_to.items()}

    @rule(batch=records, note=st.text(max_size=8))
    def commit(self, batch: list[Record], note: str) -> None:
        positions = {tp: Committed(at, note) for tp, at in self.read_to.items()}
        for member in self.members:
            member.commit(positions, batch)
        self.positions |= positions
        self._remember(batch)

    @rule(partition=st.sampled_from(range(PARTITIONS)), part=st.floats(0, 1))
    def seek(self, partition: int, part: float) -> None:
        tp = TopicPartition("in", partition)
        self.read_to[tp] = int(self.ends[tp] * part)
        for member in self.members:
            member.seek(tp, self.read_to[tp])

    @rule()
    def another_owner(self) -> None:
        self.stale.append(self.members)
        self.members = self._join()

    @rule(batch=records)
    def stale_commit(self, batch: list[Record]) -> None:
        for members in self.stale[-2:]:
            for member in members:
                try:
                    member.commit({TPS[0]: Committed(0, "stale")}, batch)
                except Fenced:
                    continue
                raise AssertionError("a stale owner committed")

    @rule()
    def tidy(self) -> None:
        dropped = [log.clean() for log in self.logs]
        expected = 0
        for tp in TPS[PARTITIONS:]:  # `out` is compacted
            newest = {m[1]: m[0] for m in self.model[tp]}
            kept = [m for m in self.model[tp] if m[1] is None or newest[m[1]] == m[0]]
            expected += len(self.model[tp]) - len(kept)
            self.model[tp] = kept
        assert dropped == [expected, expected]

    @rule()
    def reopen(self) -> None:
        self.logs[1].close()
        self.logs[1] = self._file()
        self.stale = []
        self.members = self._join()

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log in self.logs:
            reader = log.reader(dict.fromkeys(TPS, 0))
            found: dict[TopicPartition, list[Message]] = {tp: [] for tp in TPS}
            while blocks := reader.poll(1_000, 0):
                for b in blocks:
                    rows = zip(b.offsets, b.keys, b.values, strict=True)
                    found[b.tp] += [(o, k, v, b.headers.get(i, ())) for i, (o, k, v) in enumerate(rows)]
            assert found == self.model
            assert {tp: log.span(tp.topic)[tp.partition].end for tp in TPS} == self.ends
            assert log.committed("g", TPS[:PARTITIONS]) == {tp: self.positions.get(tp) for tp in TPS[:PARTITIONS]}

    def teardown(self) -> None:
        if hasattr(self, "logs"):
            for log in self.logs:
                log.close()
            shutil.rmtree(self.folder)


TestHomes = Homes.TestCase
TestHomes.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
