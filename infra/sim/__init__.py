"""Simulated infrastructure: plays the nodes of a cluster through the log, in real or simulated time, with seeded faults."""

from infra.sim.faults import SOME, Faults
from infra.sim.infrastructure import Pace, SimulatedInfrastructure
from infra.sim.worker import SimWorker

__all__ = ["SOME", "Faults", "Pace", "SimWorker", "SimulatedInfrastructure"]
