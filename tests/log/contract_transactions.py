"""The contract, part three: owners. All or nothing, read-committed, one writer per slot."""

import pytest

from schemas.errors import Fenced, LockstepError, TransactionAborted
from schemas.log import Log, Member
from schemas.messages import Committed, Record, TopicPartition
from tests.log.home import Ears, Home, drain, everything, numbered, quiet, settle, values, write


def owner(log: Log, group: str, topic: str, name: str, ears: Ears | None = None) -> Member:
    return log.member(group, [topic], ears or Ears(), owner=name, assign_all=True)


class TransactionContract:
    """Members with an owner's name."""

    def test_positions_notes_and_records_come_together(self, home: Home) -> None:
        source, out, side, group = home.topic(2), home.topic(2), home.topic(), home.group()
        log = home.open()
        write(log, numbered(source, 10, partition=0) + numbered(source, 10, partition=1))
        member = owner(log, group, source, f"slot-{group}")
        positions = {b.tp: Committed(b.next_offset, f"note-{b.partition}") for b in drain(member, home, 20)}
        made = [Record(out, b"a", b"%d" % i, i % 2, (("n", b"%d" % i),)) for i in range(6)]
        member.commit(positions, [*made, Record(side, None, b"aside", 0), Record(side, b"dead", None, 0)])
        assert home.open().committed(group, list(positions)) == positions
        blocks = drain(home.open().reader({TopicPartition(out, p): 0 for p in range(2)}), home, 6)
        assert values(b for b in blocks if b.partition == 0) == [b"0", b"2", b"4"]
        assert values(b for b in blocks if b.partition == 1) == [b"1", b"3", b"5"]
        assert [h for b in blocks for h in b.headers.values()] == [(("n", v),) for b in blocks for v in b.values]
        assert everything(home, side, 2) == [b"aside", None]
        member.close(10_000)

    def test_one_commit_after_the_other(self, home: Home) -> None:
        source, out, group = home.topic(), home.topic(), home.group()
        log = home.open()
        write(log, numbered(source, 20))
        tp = TopicPartition(source, 0)
        member = owner(log, group, source, f"slot-{group}")
        blocks = drain(member, home, 20, max_records=1)
        assert len(blocks) == 20
        for block in blocks:
            member.commit({tp: Committed(block.next_offset)}, [Record(out, b"k", block.values[0], 0)])
        assert everything(home, out, 20) == [b"%d" % i for i in range(20)]
        assert log.committed(group, [tp]) == {tp: Committed(blocks[-1].next_offset)}
        assert quiet(member, home) == []
        member.close(10_000)
        # Offsets may have gaps between transactions; positions from blocks do not care.
        later = owner(home.open(), group, source, f"slot-{group}")
        settle(home, [later], lambda: later.assignment() == {tp})
        assert quiet(later, home) == []
        later.close(10_000)

    def test_records_alone_and_positions_alone(self, home: Home) -> None:
        source, out, group = home.topic(), home.topic(), home.group()
        log = home.open()
        write(log, numbered(source, 3))
        tp = TopicPartition(source, 0)
        member = owner(log, group, source, f"slot-{group}")
        block = drain(member, home, 3)[-1]
        member.commit({}, numbered(out, 2))
        assert log.committed(group, [tp]) == {tp: None}
        member.commit({tp: Committed(block.next_offset, "alone")})
        assert log.committed(group, [tp]) == {tp: Committed(block.next_offset, "alone")}
        assert everything(home, out, 2) == [b"0", b"1"]
        member.close(10_000)

    def test_of_a_commit_that_fails_nothing_happened(self, home: Home) -> None:
        source, out, group = home.topic(), home.topic(max_message_bytes=100_000), home.group()
        log = home.open()
        write(log, numbered(source, 3))
        tp = TopicPartition(source, 0)
        member = owner(log, group, source, f"slot-{group}")
        block = drain(member, home, 3)[-1]
        impossible = Record(out, b"k", bytes(200_000), 0)
        with pytest.raises(LockstepError):
            member.commit({tp: Committed(block.next_offset)}, [*numbered(out, 3), impossible, *numbered(out, 3)])
        assert home.open().committed(group, [tp]) == {tp: None}
        assert everything(home, out, 0) == []
        # Whoever owns the slot next starts as if it had never been tried.
        ears = Ears()
        again = owner(home.open(), group, source, f"slot-{group}", ears)
        block = drain(again, home, 3)[-1]
        assert ears.committed == {tp: None}
        again.commit({tp: Committed(block.next_offset)}, numbered(out, 1, start=7))
        assert everything(home, out, 1) == [b"7"]
        again.close(10_000)

    def test_a_newer_owner_fences_the_older(self, home: Home) -> None:
        source, out, group = home.topic(2), home.topic(), home.group()
        log = home.open()
        write(log, numbered(source, 5, partition=0))
        tp = TopicPartition(source, 0)
        old = owner(log, group, source, f"slot-{group}")
        block = drain(old, home, 5)[-1]
        old.commit({tp: Committed(block.offsets[1], "old")}, [Record(out, b"k", b"old", 0)])

        refused: list[Fenced] = []
        ears = Ears()

        def stale_commit() -> None:
            with pytest.raises(Fenced) as raised:
                old.commit({tp: Committed(block.next_offset, "stale")}, [Record(out, b"k", b"stale", 0)])
            refused.append(raised.value)

        # Not only some time after: when the new owner is first told its partitions, the old one is fenced already.
        ears.on_assigned = stale_commit
        new = owner(home.open(), group, source, f"slot-{group}", ears)
        settle(home, [new], lambda: len(new.assignment()) == 2)
        assert len(refused) == 1
        assert ears.committed == {tp: Committed(block.offsets[1], "old"), TopicPartition(source, 1): None}
        new.commit({tp: Committed(block.next_offset, "new")}, [Record(out, b"k", b"new", 0)])
        stale_commit()  # and it stays so
        assert everything(home, out, 2) == [b"old", b"new"]
        assert home.open().committed(group, [tp]) == {tp: Committed(block.next_offset, "new")}
        old.close(10_000)
        new.close(10_000)

    def test_owners_of_different_slots_do_not_meet(self, home: Home) -> None:
        source, out = home.topic(), home.topic()
        groups = [home.group(), home.group()]
        members = [owner(home.open(), g, source, f"slot-{g}") for g in groups]
        write(home.open(), numbered(source, 2))
        tp = TopicPartition(source, 0)
        for member, group in zip(members, groups, strict=True):
            block = drain(member, home, 2)[-1]
            member.commit({tp: Committed(block.next_offset)}, [Record(out, b"k", group.encode(), 0)])
        assert everything(home, out, 2) == [g.encode() for g in groups]
        for member in members:
            member.close(10_000)

    def test_owners_share_a_group(self, home: Home) -> None:
        """As observe does: partitions are shared, and each process writes through a slot of its own."""
        source, out, group = home.topic(2), home.topic(2), home.group()
        log = home.open()
        write(log, numbered(source, 5, partition=0) + numbered(source, 5, partition=1))
        a = log.member(group, [source], Ears(), owner=f"a-{group}")
        b = home.open().member(group, [source], Ears(), owner=f"b-{group}")
        got: list[bytes | None] = []
        members = (a, b)

        def step() -> bool:
            for member in members:
                for block in member.poll(100, 20):
                    if block.tp in member.assignment():
                        records = [Record(out, None, v, block.partition) for v in block.values]
                        try:
                            member.commit({block.tp: Committed(block.next_offset)}, records)
                        except (
                            TransactionAborted
                        ):  # the group was sharing anew just then: nothing happened, do it again
                            if block.tp in member.assignment():
                                member.seek(block.tp, block.offsets[0])
                            continue
                        got.extend(block.values)
            return len(a.assignment()) == len(b.assignment()) == 1 and len(got) >= 10

        settle(home, [], step)
        assert sorted(v or b"" for v in everything(home, out, 10)) == sorted(b"%d" % i for i in range(5) for _ in "ab")
        for member in members:
            member.close(10_000)
