"""The simulated infrastructure as a worker beside the others, in real time: `lockstep up --simulate`, `run simulate`.

When no node is registered it registers the small map of `infra.sim.map`; else it plays the nodes that are there. Stepped by
`streams.runner.Loop`.
"""

from infra.sim import map as small_map
from infra.sim.faults import Faults
from infra.sim.infrastructure import Pace, SimulatedInfrastructure
from schemas.health import Health
from schemas.log import Log


class SimWorker:
    """`Worker` around `SimulatedInfrastructure`."""

    name = "simulate"

    def __init__(
        self, log: Log, domain: str, *, seed: int = 0, faults: Faults | None = None, pace: Pace | None = None
    ) -> None:
        self._log = log
        self._domain = domain
        self._seed = seed
        self._faults = faults
        self._pace = pace
        self._simulated = self._make()
        self._ready = False

    def _make(self) -> SimulatedInfrastructure:
        return SimulatedInfrastructure(self._log, self._domain, seed=self._seed, faults=self._faults, pace=self._pace)

    def step(self, now: int, timeout_ms: int) -> int:
        """One step in real time. When a wake is nearer than `timeout_ms`, waits no longer than until then."""
        simulated = self._simulated
        if not self._ready:
            handled = simulated.step(now)
            if not simulated.nodes:
                simulated.register(small_map.nodes(self._domain, now))
                if not simulated.links:
                    simulated.register(small_map.links(self._domain, now))
            self._ready = True
            return handled + simulated.step(now)
        wake = simulated.next_wake()
        wait = timeout_ms if wake is None else max(0, min(timeout_ms, wake - now))
        return simulated.step(now, wait)

    def reset(self) -> None:
        """Begin anew from what the log says."""
        self._simulated.close(1_000)
        self._simulated = self._make()
        self._ready = False

    def health(self) -> Health:
        return Health(True, self._ready, f"plays {len(self._simulated.nodes)} nodes" if self._ready else "starts")

    def close(self, timeout_ms: int) -> None:
        self._simulated.close(timeout_ms)
