"""The contract, part two: groups. Sharing, positions, pausing, taking over."""

import time

import pytest

from schemas.errors import Fatal, Fenced
from schemas.messages import Committed, TopicPartition
from tests.log.home import Ears, Home, drain, everything, numbered, quiet, settle, values, write


class GroupContract:
    """Groups of members."""

    def test_positions_and_their_notes_survive(self, home: Home) -> None:
        topic, group = home.topic(2), home.group()
        log = home.open()
        write(log, numbered(topic, 10, partition=0) + numbered(topic, 10, partition=1))
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        ears = Ears()
        member = log.member(group, [topic], ears)
        blocks = drain(member, home, 20)
        assert ears.committed == {zero: None, one: None}
        offsets = [o for b in blocks if b.partition == 0 for o in b.offsets]
        note = '{"plan": [4, 9], "größe": "✓"}' + "x" * 500
        member.commit({zero: Committed(offsets[4], note)})
        member.close(10_000)
        assert home.open().committed(group, [zero, one]) == {zero: Committed(offsets[4], note), one: None}
        assert log.committed(home.group(), [zero]) == {zero: None}  # groups know nothing of each other

        again = Ears()
        later = home.open().member(group, [topic], again)
        blocks = drain(later, home, 16)
        assert again.committed == {zero: Committed(offsets[4], note), one: None}
        assert values(b for b in blocks if b.partition == 0) == [b"%d" % i for i in range(4, 10)]
        assert values(b for b in blocks if b.partition == 1) == [b"%d" % i for i in range(10)]
        later.close(10_000)

    def test_the_listener_says_where_to_start(self, home: Home) -> None:
        topic, group = home.topic(2), home.group()
        log = home.open()
        write(log, numbered(topic, 10, partition=0) + numbered(topic, 10, partition=1))
        member = log.member(group, [topic], Ears({TopicPartition(topic, 0): 7}))
        blocks = drain(member, home, 13)
        assert values(b for b in blocks if b.partition == 0) == [b"7", b"8", b"9"]
        assert values(b for b in blocks if b.partition == 1) == [b"%d" % i for i in range(10)]
        member.close(10_000)

    def test_equally_partitioned_topics_are_dealt_by_number(self, home: Home) -> None:
        """Whoever has a node's telemetry has its registration, too: state of both is in one place."""
        topics, group = [home.topic(4) for _ in range(3)], home.group()
        members = [home.open().member(group, topics, Ears()) for _ in range(3)]

        def numbers() -> list[set[int]]:
            return [{tp.partition for tp in m.assignment()} for m in members]

        settle(home, members, lambda: all(numbers()) and sum(len(n) for n in numbers()) == 4)
        for member, mine in zip(members, numbers(), strict=True):
            assert member.assignment() == {TopicPartition(t, n) for t in topics for n in mine}
        left = members.pop()
        left.close(10_000)
        settle(home, members, lambda: sum(len(m.assignment()) for m in members) == 12)
        write(home.open(), [r for t in topics for n in range(4) for r in numbered(t, 1, partition=n)])
        got: list[tuple[str, int]] = []

        def read() -> bool:
            got.extend((b.topic, b.partition) for m in members for b in m.poll(100, 20) for _ in b.values)
            return len(got) >= 12

        settle(home, members[:0], read)
        assert sorted(got) == sorted((t, n) for t in topics for n in range(4))
        for member in members:
            member.close(10_000)

    def test_a_paused_partition_is_silent_and_loses_nothing(self, home: Home) -> None:
        topic = home.topic(2)
        log = home.open()
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        member = log.member(home.group(), [topic], Ears())
        settle(home, [member], lambda: member.assignment() == {zero, one})
        member.pause([zero])
        write(log, numbered(topic, 5, partition=0) + numbered(topic, 5, partition=1))
        blocks = drain(member, home, 5) + quiet(member, home)
        assert [b.partition for b in blocks if len(b)] == [1] * len(blocks)
        assert values(blocks) == [b"%d" % i for i in range(5)]
        member.resume([zero])
        assert values(drain(member, home, 5)) == [b"%d" % i for i in range(5)]
        member.close(10_000)

    def test_seek_goes_back_and_forth(self, home: Home) -> None:
        topic = home.topic()
        log = home.open()
        write(log, numbered(topic, 20))
        tp = TopicPartition(topic, 0)
        member = log.member(home.group(), [topic], Ears())
        offsets = [o for b in drain(member, home, 20) for o in b.offsets]
        member.seek(tp, offsets[5])
        assert values(drain(member, home, 15)) == [b"%d" % i for i in range(5, 20)]
        member.seek(tp, offsets[18])
        assert values(drain(member, home, 2)) == [b"18", b"19"]
        member.close(10_000)

    def test_lag_counts_what_was_not_polled(self, home: Home) -> None:
        topic = home.topic()
        log = home.open()
        write(log, numbered(topic, 30))
        tp = TopicPartition(topic, 0)
        member = log.member(home.group(), [topic], Ears())
        first = drain(member, home, 1, max_records=10)
        polled = sum(map(len, first))
        deadline = time.monotonic() + home.settle_ms / 1000
        while member.lag().get(tp) != 30 - polled and time.monotonic() < deadline:
            time.sleep(0.02)  # "may be slightly old"
        assert member.lag() == {tp: 30 - polled}
        drain(member, home, 30 - polled)
        while member.lag().get(tp) != 0 and time.monotonic() < deadline:
            member.poll(1, 20)
        assert member.lag() == {tp: 0}
        member.close(10_000)

    def test_members_share_and_hear_only_what_changes(self, home: Home) -> None:
        topic, group = home.topic(4), home.group()
        everywhere = {TopicPartition(topic, p) for p in range(4)}
        ears = [Ears(), Ears(), Ears()]

        def nobody_has_two() -> None:
            assert sum(len(e.held()) for e in ears) == len(frozenset().union(*(e.held() for e in ears)))

        for ear in ears:
            ear.on_assigned = nobody_has_two
        a = home.open().member(group, [topic], ears[0])
        settle(home, [a], lambda: a.assignment() == everywhere)
        b = home.open().member(group, [topic], ears[1])

        def shared() -> bool:
            return len(a.assignment()) == 2 and a.assignment() | b.assignment() == everywhere

        settle(home, [a, b], shared)
        assert not a.assignment() & b.assignment()
        # Delta first: of the partitions that it keeps, a member hears nothing.
        assert ears[0].told == [("assigned", everywhere), ("revoked", b.assignment())]
        c = home.open().member(group, [topic], ears[2])

        def shared_by_three() -> bool:
            held = [m.assignment() for m in (a, b, c)]
            return sorted(map(len, held)) == [1, 1, 2] and frozenset().union(*held) == everywhere

        settle(home, [a, b, c], shared_by_three)
        c.close(10_000)
        settle(home, [a, b], lambda: a.assignment() | b.assignment() == everywhere)
        b.close(10_000)
        settle(home, [a], lambda: a.assignment() == everywhere)
        a.close(10_000)
        for ear in ears:
            held: set[TopicPartition] = set()
            for kind, partitions in ear.told:
                assert partitions, ear.told
                if kind == "assigned":
                    assert not partitions & held, f"told again of what it had: {ear.told}"
                    held |= partitions
                else:
                    assert kind == "revoked", ear.told  # everybody was polite: nothing is lost
                    assert partitions <= held, ear.told
                    held -= partitions
            assert held == set(), ear.told

    def test_work_may_be_committed_while_partitions_go(self, home: Home) -> None:
        topic, group = home.topic(2), home.group()
        log = home.open()
        write(log, numbered(topic, 10, partition=0) + numbered(topic, 10, partition=1))
        ears = Ears()
        a = log.member(group, [topic], ears)
        reached = {b.tp: b.next_offset for b in drain(a, home, 20)}
        ears.on_revoked = lambda: a.commit({tp: Committed(reached[tp]) for tp in ears.told[-1][1]})
        b_ears = Ears()
        b = home.open().member(group, [topic], b_ears)
        settle(home, [a, b], lambda: len(b.assignment()) == 1)
        (moved,) = b.assignment()
        assert b_ears.committed == {moved: Committed(reached[moved])}
        a.close(10_000)  # commits the other one inside `close`
        settle(home, [b], lambda: len(b.assignment()) == 2)
        assert b_ears.committed == {tp: Committed(o) for tp, o in reached.items()}
        assert quiet(b, home) == []
        b.close(10_000)

    def test_a_member_that_lost_its_partitions_cannot_commit(self, home: Home) -> None:
        impatient, others = home.open_impatient(), home.open_impatient()
        if impatient is None or others is None:
            pytest.skip("this home has no short sessions")
        topic, group = home.topic(), home.group()
        tp = TopicPartition(topic, 0)
        write(home.open(), numbered(topic, 10))
        silent = impatient.member(group, [topic], Ears())
        blocks = drain(silent, home, 10)
        assert values(blocks) == [b"%d" % i for i in range(10)]
        # From here on it is not polled: another one gets its partition, and from its committed position.
        ears = Ears()
        next_one = others.member(group, [topic], ears)
        again = drain(next_one, home, 10)
        assert values(again) == values(blocks)
        assert ears.committed == {tp: None}
        next_one.commit({tp: Committed(again[0].offsets[3], "mine")})
        with pytest.raises(Fenced):
            silent.commit({tp: Committed(blocks[-1].next_offset, "stale")})
        assert home.open().committed(group, [tp]) == {tp: Committed(again[0].offsets[3], "mine")}
        next_one.close(10_000)
        silent.close(10_000)

    def test_without_an_owner_there_are_no_records_in_a_commit(self, home: Home) -> None:
        topic, group = home.topic(), home.group()
        log = home.open()
        write(log, numbered(topic, 1))
        tp = TopicPartition(topic, 0)
        member = log.member(group, [topic], Ears())
        block = drain(member, home, 1)[0]
        with pytest.raises(Fatal):
            member.commit({tp: Committed(block.next_offset)}, numbered(topic, 1, start=1))
        assert log.committed(group, [tp]) == {tp: None}
        assert everything(home, topic, 1) == [b"0"]
        member.close(10_000)

    def test_closing_twice_is_once(self, home: Home) -> None:
        topic, group = home.topic(), home.group()
        ears = Ears()
        member = home.open().member(group, [topic], ears)
        settle(home, [member], lambda: len(member.assignment()) == 1)
        member.close(10_000)
        member.close(10_000)
        assert [kind for kind, _ in ears.told] == ["assigned", "revoked"]
