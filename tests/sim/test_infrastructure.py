"""The simulated nodes alone: what they say to which command, when, and what is left of it after faults and a restart."""

from collections import Counter

from connectors.log.memory import MemoryLog
from infra.sim import Faults, Pace, SimulatedInfrastructure
from schemas.codec import encode
from schemas.log import Log
from schemas.messages import Record
from schemas.records import Command, JobSubmitted, NodeTelemetry, Receipt
from schemas.topics import TOPICS
from tests.streams.facts import NOW, job, link, read, registered, write

PACE = Pace(heartbeat_ms=3_600_000, start_ms=(1_000, 1_000), release_ms=(2_000, 2_000), run_ms=(60_000, 60_000))


def command(kind: str, name: str = "j1", node: str = "n1", attempt: int = 1, at: int = NOW) -> Command:
    due = at + 120_000 if kind == "start" else 0
    return Command(
        f"default/{attempt}/{node}", at, "default", kind, name, attempt, node, 1, 1, 1000, 1_000, 1 << 30, (), due
    )


def fresh(*rows: object) -> MemoryLog:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    write(log, [registered("n1"), *rows])  # type: ignore[list-item]
    return log


def asked(run_ms: int, exit_code: int | None = None, name: str = "j1") -> JobSubmitted:
    labels = (f"sim.run_ms={run_ms}", *(() if exit_code is None else (f"sim.exit_code={exit_code}",)))
    return job(name)._replace(labels=labels)


def play(simulated: SimulatedInfrastructure, until: int, start: int = NOW) -> None:
    """Step at every moment at which the simulation has something to do."""
    now = start
    while now <= until:
        simulated.step(now)
        wake = simulated.next_wake()
        assert wake is None or wake > now, "a step must leave nothing that was due"
        now = until + 1 if wake is None else wake


def receipts(log: Log) -> list[tuple[str, int, str]]:
    """(kind, milliseconds after NOW, node), in order of time."""
    rows = [r for r in read(log, "receipts") if isinstance(r, Receipt)]
    return [(r.kind, r.at - NOW, r.node) for r in sorted(rows, key=lambda r: r.at)]


def order(log: Log, *commands: Command) -> None:
    write(log, [Record("commands", c.node.encode(), encode(c)) for c in commands])


def test_starts_runs_and_releases_in_its_time() -> None:
    log = fresh(asked(5_000))
    order(log, command("start"))
    simulated = SimulatedInfrastructure(log, "default", pace=PACE)
    play(simulated, NOW + 10_000)
    assert receipts(log) == [("started", 1_000, "n1"), ("finished", 6_000, "n1")]
    assert simulated.running() == 1, "the cards are held until a release is asked for"
    order(log, command("release", at=NOW + 10_000))
    play(simulated, NOW + 20_000, NOW + 10_000)
    assert receipts(log)[2:] == [("released", 12_000, "n1")]
    assert simulated.running() == 0


def test_a_label_says_how_it_ends_and_no_label_means_the_default() -> None:
    log = fresh(asked(5_000, exit_code=3), job("j2"))
    order(log, command("start"), command("start", "j2"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 100_000)
    ends = {
        r.job: (r.kind, r.exit_code, r.at - NOW)
        for r in read(log, "receipts")
        if isinstance(r, Receipt) and r.kind != "started"
    }
    assert ends == {"j1": ("failed", 3, 6_000), "j2": ("finished", 0, 61_000)}


def test_a_command_that_comes_twice_is_obeyed_once() -> None:
    log = fresh(asked(5_000))
    order(log, command("start"), command("start"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 10_000)
    assert [k for k, _, _ in receipts(log)] == ["started", "finished"]


def test_commands_of_other_domains_and_unknown_nodes_are_not_obeyed() -> None:
    log = fresh()
    order(log, command("start", node="elsewhere"), command("start")._replace(domain="other"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 10_000)
    assert receipts(log) == []


def test_heartbeats_keep_their_rhythm_and_their_counters_grow() -> None:
    log = fresh(link("a-b"))
    simulated = SimulatedInfrastructure(log, "default", pace=PACE)
    play(simulated, NOW + 3 * 3_600_000)
    samples = [r for r in read(log, "resource-telemetry") if isinstance(r, NodeTelemetry)]
    assert [s.at - NOW for s in samples] == [0, 3_600_000, 7_200_000, 10_800_000]
    assert [s.counter for s in samples] == sorted({s.counter for s in samples})
    assert all(s.node == "n1" and s.cards_healthy == 8 for s in samples)
    assert len(read(log, "link-telemetry")) == 4


def test_a_sample_shows_what_runs() -> None:
    log = fresh(asked(10 * 3_600_000))
    order(log, command("start"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 3_600_000)
    idle, busy = (r for r in read(log, "resource-telemetry") if isinstance(r, NodeTelemetry))
    # The command was read before the first beat, so both beats see it: one of eight cards, at 90 %.
    assert idle.card_utilization_pct == busy.card_utilization_pct == 90.0 / 8
    assert busy.cpu_used_milli == 1_000
    assert busy.memory_used_bytes == 1 << 30
    # 300 W for the node, 60 W a card, 340 W more for the one that works.
    assert busy.power_watts == 300.0 + 8 * 60.0 + 340.0


def test_a_new_process_goes_on_where_the_log_says() -> None:
    log = fresh(asked(50_000), asked(50_000, name="j2"))
    order(log, command("start"), command("start", "j2"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 5_000)
    assert [k for k, _, _ in receipts(log)] == ["started", "started"]
    order(log, command("release", "j2"))
    play(SimulatedInfrastructure(log, "default", pace=PACE), NOW + 60_000, NOW + 6_000)
    later = receipts(log)[2:]
    # j1 began at 1 s by its receipt and runs 50 s, whichever process watches it.
    assert later == [("released", 8_000, "n1"), ("finished", 51_000, "n1")]


def test_lost_and_doubled_messages() -> None:
    for faults, times in ((Faults(lost=1.0, repeats=0), 0), (Faults(doubled=1.0), 2)):
        log = fresh(asked(5_000))
        order(log, command("start"))
        play(SimulatedInfrastructure(log, "default", pace=PACE, faults=faults), NOW + 30_000)
        assert Counter(k for k, _, _ in receipts(log)) == Counter(dict.fromkeys(("started", "finished"), times))


def test_an_end_that_may_be_lost_is_said_again_until_the_release() -> None:
    log = fresh(asked(5_000))
    order(log, command("start"))
    # So small a chance that nothing is lost here; that messages can be lost is what makes nodes repeat.
    simulated = SimulatedInfrastructure(
        log, "default", pace=PACE, faults=Faults(lost=1e-12, repeat_ms=10_000, repeats=3)
    )
    play(simulated, NOW + 20_000)
    assert [(k, t) for k, t, _ in receipts(log)] == [("started", 1_000), ("finished", 6_000), ("finished", 16_000)]
    order(log, command("release"))
    play(simulated, NOW + 200_000, NOW + 20_000)
    kinds = Counter(k for k, _, _ in receipts(log))
    assert kinds == {"started": 1, "finished": 2, "released": 4}


def test_one_seed_one_history_however_the_steps_fall() -> None:
    faults = Faults(lost=0.2, late=0.3, doubled=0.3, reordered=0.5, start_failed=0.2)

    def history(seed: int, every: int) -> list[Receipt]:
        names = [f"j{i}" for i in range(20)]
        log = fresh(*(asked(5_000 + 1_000 * i, name=n) for i, n in enumerate(names)))
        order(log, *(command("start", n) for n in names))
        simulated = SimulatedInfrastructure(log, "default", seed=seed, pace=PACE, faults=faults)
        for now in range(NOW, NOW + 120_000, every):
            simulated.step(now)
        return sorted(r for r in read(log, "receipts") if isinstance(r, Receipt))

    assert history(1, 1_000) == history(1, 1_000)
    assert history(1, 1_000) == history(1, 500), "all delays are whole seconds, so finer steps see the same"
    assert history(1, 1_000) != history(2, 1_000)


def test_a_node_dies_says_nothing_and_comes_back_empty() -> None:
    log = fresh(asked(40 * 3_600_000))
    order(log, command("start"))
    # One death in a thousandth of a day on average: it comes soon.
    faults = Faults(deaths_per_day=1_000.0, down_ms=7_200_000)
    simulated = SimulatedInfrastructure(log, "default", seed=4, pace=PACE, faults=faults)
    play(simulated, NOW + 7_100_000)
    died = receipts(log)
    order(log, command("release", at=NOW + 7_100_000))
    play(simulated, NOW + 7_500_000, NOW + 7_100_000)
    after = receipts(log)[len(died) :]
    # It returns, owns up to the members it lost, and then answers the release that it missed.
    assert [k for k, _, _ in after][:2] == ["start_failed", "released"]
    beats = [r.at - NOW for r in read(log, "resource-telemetry") if isinstance(r, NodeTelemetry)]
    assert 3_600_000 not in beats, "no beat while it is dead"
    assert len(read(log, "resources")) >= 2, "it registers again"
