"""A broker for bad days."""

from tests.support.fixtures import broker, front, mortal_broker

__all__ = ["broker", "front", "mortal_broker"]
