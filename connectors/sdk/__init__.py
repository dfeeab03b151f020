"""The SDK for infrastructure teams: typed events, checked where they are made, sent in batches to Kafka or the embedded log.

from connectors.sdk import NodeTelemetry, Producer

with Producer() as p:                                    # LOCKSTEP_KAFKA, or the embedded log of LOCKSTEP_DATA_DIR
    p.send(NodeTelemetry(node="gpu-17", counter=1, cards_healthy=8))
"""

from connectors.sdk.events import (
    JobCancelled,
    JobProgress,
    JobSubmitted,
    LinkRegistered,
    LinkRemoved,
    LinkTelemetry,
    NodeRegistered,
    NodeRemoved,
    NodeTelemetry,
    Receipt,
)
from connectors.sdk.producer import Producer, ProducerSettings

__all__ = [
    "JobCancelled",
    "JobProgress",
    "JobSubmitted",
    "LinkRegistered",
    "LinkRemoved",
    "LinkTelemetry",
    "NodeRegistered",
    "NodeRemoved",
    "NodeTelemetry",
    "Producer",
    "ProducerSettings",
    "Receipt",
]
