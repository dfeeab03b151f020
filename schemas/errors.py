"""What can go wrong, by what the caller must do about it.

    LockstepError
    ├── Poison       this message can never be used: dead-letter it, go on with its neighbours
    ├── Transient    the same call may work later: retry after `retry_after_ms`
    │   └── TransactionAborted   nothing of the transaction happened: throw the state away, restore, go on
    ├── Fatal        stop this process (a supervisor may start it again)
    │   ├── Fenced       a newer owner took over: it must not write any more
    │   ├── Corrupted    stored bytes are damaged: refuse to guess
    │   └── StorageFull  no room to write durably
    ├── Refused      a person's input is wrong: one sentence, exit code 2, nothing changed
    └── NotFound     what a person asked about is not there: one sentence with what comes near, exit code 3

Every error carries the position it speaks of where there is one. Secrets never enter a message.
"""

from dataclasses import dataclass


class LockstepError(Exception):
    """Root of the tree above."""


@dataclass(frozen=True, slots=True)
class Where:
    """A position in the log: topic without prefix, partition, offset (-1: the partition as a whole)."""

    topic: str
    partition: int
    offset: int = -1

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}" + (f"@{self.offset}" if self.offset >= 0 else "")


class Poison(LockstepError):
    """One message that can never be used. `code` is stable, `reason` is for people."""

    def __init__(self, code: str, reason: str, where: Where | None = None) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.code = code
        self.reason = reason
        self.where = where


class Transient(LockstepError):
    """The same call may work after `retry_after_ms`."""

    def __init__(self, reason: str, retry_after_ms: int = 200, where: Where | None = None) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.retry_after_ms = retry_after_ms
        self.where = where


class TransactionAborted(Transient):
    """Nothing of the transaction happened; uncommitted state must be thrown away and restored."""


class Fatal(LockstepError):
    """Stop."""


class Fenced(Fatal):
    """A newer owner of the same slot exists."""


class Corrupted(Fatal):
    """Stored bytes are damaged."""


class StorageFull(Fatal):
    """No room to write durably; nothing of the failed commit happened."""


class Refused(LockstepError):
    """A person's input is wrong. The message is one sentence: what, where, what would be right."""


class NotFound(LockstepError):
    """What was asked about is not there; the message names what comes near."""
