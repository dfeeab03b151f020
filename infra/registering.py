"""Brings a schema registry to the packaged schemas: what `lockstep provision` does beside topics.

Roles register what they write by themselves; done beforehand, a registry that refuses one is found before anything runs, and
readers of other teams find all of them. It never deletes and never changes a registry's rules.
"""

from dataclasses import dataclass
from typing import Literal

from connectors.registry import subject_of
from infra.settings import Settings
from infra.wiring import open_registry
from schemas.errors import Fatal
from schemas.records import ROW_TYPES


@dataclass(frozen=True, slots=True)
class Registered:
    """One schema: what was or would be done, and its id in the registry (0: none yet)."""

    action: Literal["create", "keep"]
    subject: str
    id: int


def register_schemas(settings: Settings, *, dry_run: bool) -> list[Registered]:
    """Register every packaged record's newest version. Raises `Fatal` when the registry refuses one (an older version there
    that it does not fit, credentials), `Transient` when it is out of reach."""
    done: list[Registered] = []
    with (
        open_registry(settings, register=False) as there,
        open_registry(settings) as ids,
    ):
        there.check()
        for record in ROW_TYPES:
            subject = subject_of(record)
            try:
                done.append(Registered("keep", subject, there.newest(record)))
            except Fatal:  # it answers, and knows no such schema
                done.append(Registered("create", subject, 0 if dry_run else ids.newest(record)))
    return done
