"""The simulation as a worker beside the others: its small map, jobs submitted by hand, a second start."""

from pathlib import Path

from connectors.log.memory import MemoryLog
from connectors.snapshots import FolderSnapshots
from infra.sim import Pace, SimWorker
from infra.sim import map as small_map
from schemas.records import JobSubmitted
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.engine import inspect
from streams.observe import Observe
from streams.runner import ProcessorWorker, Worker
from tests.streams.facts import NOW, job, read, registered, write

PACE = Pace(heartbeat_ms=15_000, run_ms=(20_000, 20_000))


def workers(log: MemoryLog, folder: Path) -> tuple[SimWorker, ProcessorWorker, ProcessorWorker]:
    return (
        SimWorker(log, "default", pace=PACE),
        ProcessorWorker(log, Observe),
        ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(folder), version="test")),
    )


def drive(all_of_them: tuple[Worker, ...], since: int, until: int) -> None:
    """All workers, every 100 ms of simulated time."""
    for now in range(since, until, 100):
        while sum(w.step(now, 0) for w in all_of_them):
            pass


def state_of(decide: ProcessorWorker) -> dict[str, str]:
    assert isinstance(decide.processor, Decide)
    return {j.job: j.state for j in inspect.jobs(decide.processor.state)}


def test_the_small_map() -> None:
    nodes, links = small_map.nodes("default", NOW), small_map.links("default", NOW)
    assert (len(nodes), sum(n.cards for n in nodes), len(links)) == (48, 384, 38)
    sites = {n.site for n in nodes}
    assert len(sites) == 12
    assert {end for link in links for end in (link.src_site, link.dst_site)} == sites
    # Every link has its way back, as in the table.
    ways = {(link.src_site, link.dst_site) for link in links}
    assert {(b, a) for a, b in ways} == ways
    assert all(n.card_memory_bytes > 0 for n in nodes)


def test_a_job_submitted_by_hand_runs_and_ends_on_the_small_map(tmp_path: Path) -> None:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    simulate, observe, decide = workers(log, tmp_path)
    drive((simulate, observe, decide), NOW, NOW + 1_000)
    assert simulate.health().ready
    assert len(read(log, "resources")) == 48
    assert isinstance(decide.processor, Decide)
    links = inspect.links(decide.processor.state)
    assert len(links) == 38
    write(log, [job("by-hand", members=2, cards_milli=8_000)])
    drive((simulate, observe, decide), NOW + 1_000, NOW + 5_000)
    assert state_of(decide) == {"by-hand": "running"}
    drive((simulate, observe, decide), NOW + 5_000, NOW + 30_000)
    assert state_of(decide) == {"by-hand": "finished"}
    assert not decide.processor.state.holdings
    # Its probes were heard, too.
    assert any(link.used_gbps > 0 for link in inspect.links(decide.processor.state))


def test_nodes_that_are_there_are_played_and_none_is_added(tmp_path: Path) -> None:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    write(log, [registered("mine"), job("j1")])
    simulate, observe, decide = workers(log, tmp_path)
    drive((simulate, observe, decide), NOW, NOW + 30_000)
    assert state_of(decide) == {"j1": "finished"}
    assert len(read(log, "resources")) == 1


def test_started_again_it_goes_on(tmp_path: Path) -> None:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    asked: JobSubmitted = job("j1")
    write(log, [registered("mine"), asked])
    first = workers(log, tmp_path)
    drive(first, NOW, NOW + 5_000)
    assert state_of(first[2]) == {"j1": "running"}
    for w in first:
        w.close(1_000)
    second = workers(log, tmp_path)
    drive(second, NOW + 6_000, NOW + 40_000)
    assert state_of(second[2]) == {"j1": "finished"}
    second[0].reset()
    assert not second[0].health().ready
    drive(second, NOW + 41_000, NOW + 42_000)
    assert second[0].health().ready
