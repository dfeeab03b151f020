"""A broker for bad days."""

from tests.support.fixtures import broker, mortal_broker

__all__ = ["broker", "mortal_broker"]
