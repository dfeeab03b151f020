"""Real processes from `tests.commands`, and small things several tests of this folder need."""

from tests.commands.conftest import lockstep
from tests.support.fixtures import broker

__all__ = ["broker", "lockstep"]
