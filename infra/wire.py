"""What both sides of the local API know: methods, errors by kind, the file with address and token. Light, so that commands are quick."""

import time
from collections.abc import Mapping
from typing import Final

from schemas.errors import Fenced, LockstepError, NotFound, Refused, Transient

FILE: Final = "api.json"
# What may be called from outside: methods of `infra.questions.Questions`.
METHODS: Final = (
    "nodes", "links", "jobs", "job", "why", "submit", "cancel", "sql", "queries", "query", "report", "topics", "dead_letters",
    "dead_letter", "dead_letter_replay", "status",
)  # fmt: skip
# Errors by kind, so that the other side raises what this side raised, and the HTTP status each has.
KINDS: Final[tuple[tuple[type[LockstepError], str, int], ...]] = (
    (Refused, "refused", 400),
    (NotFound, "not_found", 404),
    (Fenced, "fenced", 409),
    (Transient, "transient", 503),
    (LockstepError, "failed", 500),
)
MAX_ROWS: Final = 10_000


def error_of(body: Mapping[str, object]) -> LockstepError:
    """The error that an answer tells of."""
    told = str(body.get("error", "no reason was given"))
    return next((t(told) for t, k, _ in KINDS if k == body.get("kind")), LockstepError(told))


def now_ms() -> int:
    """This machine's time, milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
