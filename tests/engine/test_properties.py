"""Laws over random histories: nodes come, shrink, fall silent, leave and return with work of old; receipts come late, twice,
in any order; the engine is restarted between any two steps. What is held is kept in books of its own (`oracle.Books`)."""

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.records import (
    CapacityQuarantined,
    Command,
    JobEnded,
    JobInterrupted,
    JobSubmitted,
    LedgerEntry,
    NodeChanged,
    NodeRecorded,
    Receipt,
)
from streams.engine import EngineConfig, State, accept, commands, decide, evolve, next_wake, restore, snapshot
from streams.engine import inspect as look
from streams.engine.reasons import PENDING
from tests.engine.oracle import LEVELS, Books
from tests.engine.rows import DOMAIN, NOW, cancel, job, node, receipt

CONFIG = EngineConfig(start_timeout_ms=60_000, release_timeout_ms=60_000, lost_after_ms=30_000, max_attempts=3)
NAMES = tuple(f"n{i}" for i in range(6))
STATES = ("up", "up", "up", "up", "up", "silent", "draining", "maintenance", "removed")

descriptions = st.builds(
    node,
    st.sampled_from(NAMES),
    cards=st.sampled_from((0, 2, 3, 4, 4)),
    model=st.sampled_from(("A100", "H800")),
    cpu=st.integers(4, 16),
    memory=st.integers(16, 64),
    region=st.sampled_from(("", "north")),
    site=st.sampled_from(("s1", "s2")),
    row=st.sampled_from(("", "w1")),
    rack=st.sampled_from(("", "r1", "r2")),
    state=st.sampled_from(STATES),
    healthy=st.sampled_from((4, 4, 4, 3, 1)),
)
asks = st.builds(
    job,
    st.just("name"),
    members=st.integers(1, 5),
    cards=st.sampled_from((0, 0.25, 0.5, 1, 1, 2, 3)),
    models=st.sampled_from(((), (), (), ("A100",), ("A100", "H800"), ("X",))),
    card_memory=st.sampled_from((0, 0, 30)),
    cpu=st.integers(0, 3),
    memory=st.integers(0, 9),
    adjacency=st.sampled_from(("", "", "", "", "rack", "site", *LEVELS[:-1])),
    priority=st.integers(0, 2),
    limit=st.sampled_from((0, 0, 100)),
)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State.empty(DOMAIN)
        self.ledger: list[LedgerEntry] = []
        self.books = Books()
        self.now = NOW
        self.commands: list[Command] = []
        self.receipts: list[Receipt] = []
        self.submitted: list[JobSubmitted] = []

    def _write(self, entries: list[LedgerEntry]) -> None:
        for e in entries:
            if isinstance(e, CapacityQuarantined):
                since = self.books.awaited.get((e.job, e.attempt, e.node), e.at)
                assert e.at - since >= CONFIG.release_timeout_ms, "a release has its time, after a return, too"
            returned = isinstance(e, NodeRecorded) and e.state != "removed" and e.node not in self.books.nodes
            self.books.post(e)
            self.ledger.append(e)
            told = commands(self.state, e)
            assert len({c.command_id for c in told}) == len(told)
            if isinstance(e, JobEnded) or (isinstance(e, JobInterrupted) and e.requeued):
                asked = {c.node for c in told if (c.kind, c.job, c.attempt) == ("release", e.job, e.attempt)}
                assert asked == self.books.holders(e.job, e.attempt), "whoever holds is asked to release, there or not"
            if isinstance(e, NodeRecorded) and returned:
                again = {(c.job, c.attempt) for c in told if (c.kind, c.node) == ("release", e.node)}
                assert again == self.books.over_on(e.node), "a node that returns is asked for all it may still hold"
            self.commands += told

    def _take(self, row: NodeChanged | JobSubmitted | Receipt) -> None:
        self._write(accept(self.state, row, "test", self.now))

    @initialize(first=st.lists(descriptions, min_size=2, max_size=6))
    def some_nodes(self, first: list[NodeChanged]) -> None:
        for row in first:
            self._take(row)

    @rule(row=descriptions)
    def node_changes(self, row: NodeChanged) -> None:
        self._take(row)

    @rule(data=st.data(), state=st.sampled_from(STATES))
    def node_changes_state(self, data: st.DataObject, state: str) -> None:
        known = list(self.books.nodes.values())
        if known:
            d = data.draw(st.sampled_from(known))
            self._take(NodeChanged(d.node, self.now, DOMAIN, *d[5:20], state, d.cards_healthy, "", 0))

    @precondition(lambda self: any(n in self.books.nodes for _, _, n in self.books.grants))
    @rule(
        data=st.data(),
        away=st.sampled_from((None, 0, 1, 100)),
        state=st.sampled_from(("up", "up", "silent", "draining")),
    )
    def a_node_at_work_leaves_and_returns(self, data: st.DataObject, away: int | None, state: str) -> None:
        """Under its name and with its cards; None: before anything is decided."""
        held = sorted({n for _, _, n in self.books.grants if n in self.books.nodes})
        d = self.books.nodes[data.draw(st.sampled_from(held))]
        self._take(NodeChanged(d.node, self.now, DOMAIN, *d[5:20], "removed", d.cards_healthy, "", 0))
        if away is not None:
            self.time_passes(away)
        self._take(NodeChanged(d.node, self.now, DOMAIN, *d[5:20], state, d.cards_healthy, "", 0))

    @rule(ask=asks)
    def submit(self, ask: JobSubmitted) -> None:
        row = ask._replace(job=f"j{len(self.submitted)}", at=self.now)
        self.submitted.append(row)
        self._take(row)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), other=st.booleans())
    def submit_again(self, data: st.DataObject, other: bool) -> None:
        row = data.draw(st.sampled_from(self.submitted))
        before = look.job(self.state, row.job)
        self._take(row._replace(members=row.members + 1) if other else row)
        assert look.job(self.state, row.job) == before

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), really=st.sampled_from((True, False, False)))
    def cancel(self, data: st.DataObject, really: bool) -> None:
        if not really:
            return
        row = data.draw(st.sampled_from(self.submitted))
        self._write(accept(self.state, cancel(row.job), "test", self.now))

    @precondition(lambda self: self.commands)
    @rule(
        data=st.data(), kind=st.sampled_from(("started", "started", "finished", "finished", "failed", "start_failed"))
    )
    def node_answers(self, data: st.DataObject, kind: str) -> None:
        """Any command so far, in any order, may be answered, more than once."""
        c = data.draw(st.sampled_from(self.commands))
        row = receipt(c.job, c.node, kind if c.kind == "start" else "released", attempt=c.attempt)
        self.receipts.append(row)
        self._take(row)

    @precondition(lambda self: self.commands)
    @rule(last=st.integers(1, 12))
    def all_answer_well(self, last: int) -> None:
        """The usual day, so that histories also get far: the newest commands are answered in order."""
        for c in self.commands[-last:]:
            self._take(receipt(c.job, c.node, "started" if c.kind == "start" else "released", attempt=c.attempt))

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def receipt_again(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.receipts))
        seq = self.state.seq
        self._take(row)
        self._take(row)
        assert self.state.seq <= seq + 1, "a doubled receipt counts once"

    @rule(seconds=st.sampled_from((0, 1, 20, 40, 100)))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000
        self.decide()

    @rule(seconds=st.integers(1, 100))
    def clock_steps_back(self, seconds: int) -> None:
        self.now -= seconds * 1000

    @rule()
    def decide(self) -> None:
        twin = restore(snapshot(self.state))
        entries = decide(self.state, self.now, CONFIG)
        # A restart behaves as the engine that went on: same decisions to the letter, same state after.
        assert decide(twin, self.now, CONFIG) == entries
        assert snapshot(twin) == snapshot(self.state)
        self._write(entries)
        assert decide(self.state, self.now, CONFIG) == [], "a second round has nothing left to do"
        at = max(self.now, self.state.at)
        assert all(at - since < CONFIG.release_timeout_ms for since in self.books.awaited.values())
        self._nothing_waits_that_fits()
        wake = next_wake(self.state, CONFIG)
        assert wake is None or wake > self.state.at, "after a round nothing is due"

    def _nothing_waits_that_fits(self) -> None:
        for name in self.books.waiting:
            view = look.job(self.state, name)
            assert view is not None
            assert view.state == "pending"
            assert view.code in PENDING
            assert view.reason
            assert self.books.narrowest(self.books.asks[name]) is None, f"{name} fits and waits"

    @rule()
    def restart(self) -> None:
        """A new engine from the ledger alone has the same bytes."""
        other = State.empty(DOMAIN)
        for e in self.ledger:
            evolve(other, e)
        assert snapshot(other) == snapshot(self.state)
        self.state = restore(snapshot(other))

    @invariant()
    def books_agree(self) -> None:
        """Free = capacity - held - quarantined, card by card; and every accepted job is somewhere."""
        views = {v.node: v for v in look.nodes(self.state)}
        assert views.keys() == self.books.nodes.keys()
        for name, view in views.items():
            cpu, memory = self.books.free_rest(name)
            assert view.cards_free_milli == sum(self.books.free_cards(name))
            assert (view.cpu_free_milli, view.memory_free_bytes) == (max(0, cpu), max(0, memory))
            assert view.jobs == tuple(sorted({j for j, _, where in self.books.grants if where == name}))
        assert self.state.quarantined.keys() == self.books.quarantined
        assert self.state.releasing == self.books.awaited
        held = Counter(j for j, _, _ in self.books.grants)
        assert {j: found.held_nodes for j, found in self.state.jobs.items() if found.held_nodes} == held
        absent = [where for _, _, where in self.books.grants if where not in self.books.nodes]
        assert (self.state.gone.keys(), self.state.gone_held) == (set(absent), len(absent))
        states = {v.job: v.state for v in look.jobs(self.state)}
        assert states.keys() == self.books.asks.keys(), "no accepted job is lost"
        assert {j for j, s in states.items() if s == "pending"} == self.books.waiting.keys()
        assert {j for j, s in states.items() if s in ("placed", "running")} == self.books.working.keys()
        assert {j: e.outcome for j, e in self.books.ended.items()}.items() <= states.items()

    def teardown(self) -> None:
        """Nothing hangs: with every node good and every command obeyed, all work ends and all is free."""
        for d in list(self.books.nodes.values()):
            self._take(NodeChanged(d.node, self.now, DOMAIN, *d[5:20], "up", d.cards, "", 0))
        for _ in range(100):
            seq = self.state.seq
            self.now = max(self.now, self.state.at) + 1000
            self._write(decide(self.state, self.now, CONFIG))
            for c in self.commands:
                for kind in ("started", "finished") if c.kind == "start" else ("released",):
                    self._take(receipt(c.job, c.node, kind, attempt=c.attempt))
            if self.state.seq == seq:
                break
        self._write(decide(self.state, self.now, CONFIG))
        assert not self.books.working
        assert not self.books.grants
        assert not self.books.quarantined
        for left in (self.state.holdings, self.state.unreleased, self.state.releasing, self.state.gone):
            assert not left
        self._nothing_waits_that_fits()
        self.books_agree()


Histories.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
