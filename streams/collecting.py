"""Python's cycle collector in a process with a large, long-lived state: no pause that grows with the state while work waits.

On its own it walks the whole state each time that grew by a quarter: 90 ms for 30,000 jobs, in the middle of a decision. State is
freed by its reference counts; only what errors and libraries tie into knots needs the collector. `infra.roles` calls both
functions, benchmarks the first.
"""

import gc
import time
from typing import Final

# Young objects are looked at after so many more were made than freed; what survives, again with the next two rounds: a few
# milliseconds. Old ones by `collect_if_quiet` only.
YOUNG: Final = 10_000
ROUNDS: Final = 3
NEVER: Final = 1_000_000_000
QUIET_S: Final = 1.0
EVERY_S: Final = 600.0
AT_LEAST_EVERY_S: Final = 6 * 3600.0


def keep_pauses_short() -> None:
    """For this process, from now on."""
    gc.set_threshold(YOUNG, ROUNDS, NEVER)


def collect_if_quiet(collected_at: float, busy_at: float) -> float:
    """Look at everything, when that was long ago and nobody waits, or when it was very long ago. Times are of `time.monotonic`;
    returns when it was done last."""
    now = time.monotonic()
    since = now - collected_at
    if since < EVERY_S or (now - busy_at < QUIET_S and since < AT_LEAST_EVERY_S):
        return collected_at
    gc.collect()
    return time.monotonic()
