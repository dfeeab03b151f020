"""A broker for the SDK's Kafka test."""

from tests.support.fixtures import broker

__all__ = ["broker"]
