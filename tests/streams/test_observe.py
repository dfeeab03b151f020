"""Observe: many samples in, few facts out. Expected values are worked out by hand beside each case."""

from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from schemas.codec import encode
from schemas.messages import Record
from schemas.records import LinkChanged, LinkRemoved, NodeChanged, NodeRemoved, Row
from schemas.topics import TOPICS
from streams.metrics import Metrics
from streams.observe import Observe
from streams.runner import ProcessorWorker
from tests.streams.facts import DAY_MS, NOW, drive, ends, link, link_sample, read, registered, sample, write

S = 1_000  # a second


class Bench:
    """Observe on a log in memory, with its clock in the test's hand."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.provision(TOPICS, dry_run=False)
        self.metrics = Metrics()
        self.worker = self.start()

    def start(self) -> ProcessorWorker:
        return ProcessorWorker(self.log, lambda: Observe("0", metrics=self.metrics), self.metrics)

    def send(self, *rows: Row, now: int = NOW) -> list[Row]:
        """Write rows, let observe work, return what it told since."""
        mark = ends(self.log, "changes")
        write(self.log, list(rows))
        drive(self.worker, now)
        return read(self.log, "changes", mark)

    def wait(self, now: int) -> list[Row]:
        mark = ends(self.log, "changes")
        self.worker.step(now, 0)
        return read(self.log, "changes", mark)

    def count(self, name: str) -> float:
        return sum(v for (n, _), v in self.metrics.values.items() if n == name)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def one_node(rows: list[Row]) -> NodeChanged:
    (row,) = rows
    assert isinstance(row, NodeChanged)
    return row


def one_link(rows: list[Row]) -> LinkChanged:
    (row,) = rows
    assert isinstance(row, LinkChanged)
    return row


def test_a_registration_is_told_with_its_whole_description(bench: Bench) -> None:
    told = one_node(bench.send(registered("n1", cards=4)))
    assert told[:18] == registered("n1", cards=4)[:18]
    assert (told.state, told.cards_healthy, told.counter) == ("up", 4, -1)


def test_samples_that_change_nothing_are_not_told(bench: Bench) -> None:
    bench.send(registered())
    assert bench.send(*[sample(counter=c, utilization=float(c)) for c in range(1, 60)]) == []


def test_fewer_healthy_cards_are_told_once(bench: Bench) -> None:
    bench.send(registered())
    told = one_node(bench.send(sample(counter=5, healthy=7), sample(counter=6, healthy=7)))
    assert (told.cards_healthy, told.cards, told.counter, told.state) == (7, 8, 6, "up")
    assert bench.send(sample(counter=7, healthy=7)) == []
    assert one_node(bench.send(sample(counter=8, healthy=8))).cards_healthy == 8


def test_doubles_and_late_samples_are_dropped(bench: Bench) -> None:
    bench.send(registered())
    assert one_node(bench.send(sample(counter=10, healthy=6))).cards_healthy == 6
    assert bench.send(sample(counter=10, healthy=8)) == []  # same counter, other figure
    assert bench.send(sample(counter=9, healthy=8)) == []  # older
    assert bench.count("lockstep_stale_samples_total") == 2
    # Out of order inside one block: the newest counter counts, wherever it stands.
    assert one_node(bench.send(sample(counter=12, healthy=4), sample(counter=11, healthy=8))).cards_healthy == 4


def test_an_agent_that_counts_from_0_again_is_heard(bench: Bench) -> None:
    bench.send(registered())
    bench.send(sample(counter=1_000, healthy=8, at=NOW + 10 * S))
    # Later by its own clock, so it is new; what was sent before and comes late or doubled is older by both.
    assert one_node(bench.send(sample(counter=0, healthy=6, at=NOW + 20 * S))).cards_healthy == 6
    assert bench.send(sample(counter=0, healthy=8, at=NOW + 20 * S)) == []
    assert bench.send(sample(counter=0, healthy=8, at=NOW + 19 * S)) == []
    assert one_node(bench.send(sample(counter=1, healthy=5, at=NOW + 30 * S))).cards_healthy == 5
    # The same when observe itself starts anew in between.
    bench.worker.close(1_000)
    bench.worker = bench.start()
    assert one_node(bench.send(sample(counter=0, healthy=7, at=NOW + 40 * S))).cards_healthy == 7


def test_a_probe_that_counts_from_0_again_is_heard(bench: Bench) -> None:
    bench.send(link())
    bench.send(link_sample("a-b", counter=500, used=50.0, at=NOW + 10 * S))
    assert bench.send(link_sample("a-b", counter=3, used=0.0, at=NOW + 9 * S)) == []
    assert bench.count("lockstep_stale_samples_total") == 1
    bench.send(link_sample("a-b", counter=0, used=0.0, at=NOW + 20 * S))
    assert bench.count("lockstep_stale_samples_total") == 1


def test_samples_of_an_unregistered_node_are_kept_for_its_registration(bench: Bench) -> None:
    assert bench.send(sample("n2", counter=3, healthy=5)) == []
    assert read(bench.log, "dead-letter") == []
    assert bench.count("lockstep_unregistered_samples_total") == 1
    told = one_node(bench.send(registered("n2")))
    assert (told.cards_healthy, told.counter) == (5, 3)


def test_the_same_registration_again_is_a_heartbeat(bench: Bench) -> None:
    bench.send(registered())
    assert bench.send(registered(at=NOW + 60 * S), now=NOW + 60 * S) == []
    assert bench.wait(NOW + 120 * S) == []
    assert one_node(bench.send(registered(cards=4, at=NOW + 61 * S), now=NOW + 121 * S)).cards == 4


def test_draining_and_removal(bench: Bench) -> None:
    bench.send(registered())
    assert one_node(bench.send(registered(admin_state="draining"))).state == "draining"
    gone = one_node(bench.send(NodeRemoved("n1", NOW, "default", "sold")))
    assert (gone.state, gone.reason) == ("removed", "sold")
    assert bench.send(NodeRemoved("n1", NOW, "default", "sold")) == []
    assert bench.send(sample(counter=50)) == []
    assert one_node(bench.send(registered())).state == "up"


def test_silence_is_told_once_and_ends_with_a_sample(bench: Bench) -> None:
    bench.send(registered())
    bench.send(sample(counter=1), now=NOW + 10 * S)
    assert bench.wait(NOW + 100 * S) == []  # 90 s after the sample: still in time
    assert one_node(bench.wait(NOW + 100 * S + 1)).state == "silent"
    assert bench.wait(NOW + 200 * S) == []
    back = one_node(bench.send(sample(counter=2), now=NOW + 201 * S))
    assert (back.state, back.reason, back.cards_healthy) == ("up", "heard again", 8)


def test_a_restart_restores_from_changes_and_gives_grace(bench: Bench) -> None:
    bench.send(registered("n1"), registered("n2"), registered("n3"))
    bench.send(sample("n1", counter=7, healthy=6))
    bench.worker.close(1_000)
    bench.worker = bench.start()
    late = NOW + 3_600 * S
    mark = ends(bench.log, "changes")
    drive(bench.worker, late)
    assert read(bench.log, "changes", mark) == []  # an hour of nobody listening is not silence
    assert bench.send(sample("n1", counter=7, healthy=8), now=late) == []  # a double, also after the restart
    assert one_node(bench.send(sample("n1", counter=8, healthy=8), now=late)).cards_healthy == 8
    silent = {r.node for r in bench.wait(late + 90 * S + 1) if isinstance(r, NodeChanged) and r.state == "silent"}
    assert silent == {"n1", "n2", "n3"}


def test_a_clock_set_back_neither_silences_nor_blinds(bench: Bench) -> None:
    bench.send(registered())
    bench.send(sample(counter=1), now=NOW + DAY_MS)
    assert bench.wait(NOW) == []  # a day back
    assert bench.wait(NOW + 60 * S) == []
    assert one_node(bench.wait(NOW + 90 * S + 1)).state == "silent"  # not a day later


def test_links_are_smoothed_and_told_when_it_matters(bench: Bench) -> None:
    first = one_link(bench.send(link(capacity=100.0)))
    assert (first.used_gbps, first.latency_ms, first.state) == (0.0, 10.0, "up")
    assert one_link(bench.send(link_sample("a-b", 1, used=20.0))).used_gbps == 20.0  # the first sample is the mean
    # 20 + 0.2·(24-20) = 20.8 and 20.8 + 0.2·(24-20.8) = 21.44: both less than 5 of 100 Gbit/s away from what was told
    assert bench.send(link_sample("a-b", 2, used=24.0), link_sample("a-b", 3, used=24.0)) == []
    # 21.44 + 0.2·(60-21.44) = 29.152
    assert one_link(bench.send(link_sample("a-b", 4, used=60.0))).used_gbps == pytest.approx(29.152)
    assert bench.send(link_sample("a-b", 4, used=0.0)) == []


def test_one_outlier_is_clipped_and_a_new_level_is_believed(bench: Bench) -> None:
    bench.send(link(capacity=100.0))
    bench.send(*[link_sample("a-b", c, used=40.0 + c % 2) for c in range(1, 21)])
    assert bench.send(link_sample("a-b", 21, used=99.0)) == []  # alone: clipped
    bench.send(link_sample("a-b", 22, used=40.0))
    told = bench.send(*[link_sample("a-b", c, used=90.0) for c in (23, 24, 25)])
    assert isinstance(told[-1], LinkChanged)
    assert told[-1].used_gbps == 90.0


def test_a_sampled_link_falls_silent_and_one_without_probe_does_not(bench: Bench) -> None:
    bench.send(link("a-b"), link("c-d"))
    bench.send(link_sample("a-b", 1, used=1.0))
    silent = bench.wait(NOW + 90 * S + 1)
    assert [(r.link, r.state) for r in silent if isinstance(r, LinkChanged)] == [("a-b", "silent")]
    assert one_link(bench.send(link_sample("a-b", 2, used=1.0), now=NOW + 91 * S)).state == "up"


def test_changes_keep_the_partition_of_their_input(bench: Bench) -> None:
    nodes = [f"n{i}" for i in range(40)]
    bench.send(*[registered(n) for n in nodes])
    spans = bench.log.span("changes")
    by_input = {p: s.end for p, s in bench.log.span("resources").items()}
    assert {p: s.end for p, s in spans.items()} == by_input
    assert sum(by_input.values()) == 40


def test_two_members_share_and_one_takes_over(tmp_path: Path) -> None:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    a = ProcessorWorker(log, lambda: Observe("a"))
    b = ProcessorWorker(log.open_again(), lambda: Observe("b"))
    write(log, [registered(f"n{i}") for i in range(40)])
    drive(a)
    deadline = 200
    while not b.health().ready and deadline:
        a.step(NOW, 10)
        b.step(NOW, 10)
        deadline -= 1
    assert b.health().ready
    write(log, [sample(f"n{i}", 1, healthy=7) for i in range(40)])
    for _ in range(30):
        a.step(NOW, 10)
        b.step(NOW, 10)
    b.close(1_000)
    write(log, [sample(f"n{i}", 2, healthy=6) for i in range(40)])
    for _ in range(30):
        a.step(NOW, 10)
    told = [r for r in read(log, "changes") if isinstance(r, NodeChanged)]
    assert sorted((r.node, r.cards_healthy) for r in told) == sorted((f"n{i}", h) for i in range(40) for h in (8, 7, 6))


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (sample(utilization=100.5), "impossible_value"),
        (sample(utilization=-0.1), "impossible_value"),
        (sample(utilization=float("nan")), "impossible_value"),
        (sample(healthy=-1), "impossible_value"),
        (sample(healthy=9), "impossible_value"),  # 8 are registered
        (sample(at=NOW + DAY_MS + 1), "from_the_future"),
        (registered("n9", cards=64), "impossible_value"),
        (registered("n9", cards=-1), "impossible_value"),
        (registered("", cards=1), "impossible_value"),
        (registered("n9", admin_state="asleep"), "impossible_value"),
        (registered("n9", at=NOW + DAY_MS + 1), "from_the_future"),
        (link(capacity=-1.0), "impossible_value"),
        (link_sample("a-b", 1, used=float("inf")), "impossible_value"),
        (link_sample("a-b", 1, used=1.0, at=NOW + DAY_MS + 1), "from_the_future"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(bench: Bench, row: Row, code: str) -> None:
    bench.send(registered("n1"))
    assert bench.send(row) == []
    (letter,) = read(bench.log, "dead-letter")
    assert (letter.code, letter.stage, letter.value) == (code, "observe", encode(row))  # type: ignore[union-attr]
    assert bench.count("lockstep_dead_letters_total") == 1


def test_a_day_ahead_is_still_believed(bench: Bench) -> None:
    bench.send(registered("n1"))
    assert one_node(bench.send(sample(healthy=7, at=NOW + DAY_MS))).cards_healthy == 7


def test_one_bad_sample_among_many_leaves_its_neighbours(bench: Bench) -> None:
    nodes = [f"n{i}" for i in range(200)]
    bench.send(*[registered(n) for n in nodes])
    rows = [sample(n, 1, healthy=9 if n == "n77" else 5) for n in nodes]
    assert len(bench.send(*rows)) == 199
    (letter,) = read(bench.log, "dead-letter")
    assert letter.value == encode(rows[77])  # type: ignore[union-attr]
    assert letter.reason == "node n77: 9 healthy cards, but 8 are registered"  # type: ignore[union-attr]


def test_a_record_on_the_wrong_topic_is_a_dead_letter(bench: Bench) -> None:
    write(bench.log, [Record("resource-telemetry", b"n1", encode(registered("n1"))), registered("n1")])
    drive(bench.worker)
    (letter,) = read(bench.log, "dead-letter")
    assert letter.code == "wrong_record"  # type: ignore[union-attr]
    assert len(read(bench.log, "changes")) == 1


def test_old_registrations_and_removals_change_nothing(bench: Bench) -> None:
    """Registered with 8 cards, removed, registered with 4; then the log says the first two once more."""
    first, gone, second = (
        registered(cards=8),
        NodeRemoved("n1", NOW + 5, "default", ""),
        registered(cards=4, at=NOW + 10),
    )
    assert one_node(bench.send(first)).cards == 8
    assert one_node(bench.send(gone)).state == "removed"
    assert bench.send(first) == []  # a double that comes after the removal does not bring the node back
    assert one_node(bench.send(second)).cards == 4
    assert bench.send(gone, first) == []
    assert bench.count("lockstep_stale_descriptions_total") == 3
    bench.worker.close(1_000)
    bench.worker = bench.start()  # what was described when is known from the changelog too
    assert bench.send(gone, first) == []
    assert bench.send(second) == []
    assert one_node(bench.send(NodeRemoved("n1", NOW + 11, "default", ""))).state == "removed"


def test_old_registrations_and_removals_of_links_change_nothing(bench: Bench) -> None:
    first, gone = link(), LinkRemoved("a-b", NOW + 5, "default", "")
    second = first._replace(at=NOW + 10, capacity_gbps=first.capacity_gbps / 2)
    bench.send(first)
    assert one_link(bench.send(gone)).state == "removed"
    assert bench.send(first) == []
    assert one_link(bench.send(second)).capacity_gbps == first.capacity_gbps / 2
    assert bench.send(gone, first) == []
    bench.worker.close(1_000)
    bench.worker = bench.start()
    assert bench.send(gone, first) == []
    assert one_link(bench.send(gone._replace(at=NOW + 11))).state == "removed"


def test_a_clock_that_was_ahead_and_is_set_right_does_not_make_its_node_unheard(bench: Bench) -> None:
    ahead = NOW + 20 * 3_600 * S
    bench.send(registered(at=ahead))
    bench.send(sample(counter=1_000, at=ahead))
    assert bench.send(sample(counter=999, healthy=1, at=ahead - 5 * S)) == []  # still late by its own clock
    told = one_node(bench.send(sample(counter=0, healthy=6, at=NOW + 10 * S), now=NOW + 10 * S))
    assert told.cards_healthy == 6
    for i in range(1, 20):
        now = NOW + (10 + 10 * i) * S
        assert bench.send(sample(counter=i, healthy=6, at=now), now=now) == []
    assert bench.wait(NOW + 220 * S) == []  # heard all the time
    assert one_node(bench.send(registered(cards=7, at=NOW + 220 * S), now=NOW + 220 * S)).cards == 7


@pytest.mark.parametrize("cut", range(4))
def test_an_agent_that_starts_anew_is_heard_however_its_samples_were_cut(bench: Bench, cut: int) -> None:
    bench.send(registered())
    samples = [
        sample(counter=1_001, healthy=8, at=NOW + 1 * S), sample(counter=0, healthy=3, at=NOW + 2 * S),
        sample(counter=1, healthy=3, at=NOW + 3 * S), sample(counter=2, healthy=3, at=NOW + 4 * S),
    ]  # fmt: skip
    told = [*bench.send(*samples[:cut]), *bench.send(*samples[cut:])]
    assert [c.cards_healthy for c in told if isinstance(c, NodeChanged)] == [3]


def test_of_samples_at_one_moment_the_greatest_counter_is_the_newest(bench: Bench) -> None:
    bench.send(registered())
    bench.send(sample(counter=500, at=NOW))
    late = [sample(counter=c, healthy=h, at=NOW + S) for c, h in ((2, 6), (3, 5), (1, 7))]
    told = one_node(bench.send(sample(counter=501, healthy=4, at=NOW + 1), *late))
    assert (told.counter, told.cards_healthy) == (3, 5)


def test_a_probe_whose_clock_was_ahead_is_heard_again_too(bench: Bench) -> None:
    bench.send(link())
    bench.send(link_sample("a-b", counter=100, used=50.0, at=NOW + 20 * 3_600 * S))
    bench.send(link_sample("a-b", counter=0, used=50.0, at=NOW + 10 * S), now=NOW + 10 * S)
    assert bench.count("lockstep_stale_samples_total") == 0
