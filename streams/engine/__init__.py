"""The scheduling engine: pure functions on a state. No clock, no I/O, no randomness (an import contract holds that).

`accept` turns an input into ledger entries, `decide` proposes entries at a time it is given, `evolve` applies one entry;
`accept` and `decide` evolve what they propose, so a state is always that of its ledger. Called by `streams.decide`, by
followers that answer questions, and by tests.
"""

from streams.engine._accept import accept, never_grantable
from streams.engine._commands import commands
from streams.engine._decide import decide, next_wake
from streams.engine._evolve import evolve
from streams.engine._snapshot import restore, snapshot
from streams.engine._state import EngineConfig, State

__all__ = [
    "EngineConfig",
    "State",
    "accept",
    "commands",
    "decide",
    "evolve",
    "never_grantable",
    "next_wake",
    "restore",
    "snapshot",
]
