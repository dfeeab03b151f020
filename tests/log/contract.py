"""The contract of the log, one suite for all homes: every sentence of `schemas/log.py` as a test.

A home's test module derives a class from `LogContract` and gives it a fixture `home` (see `tests/log/home.py`). Nothing
here knows which home it is testing, and nothing here waits for longer than `home.settle_ms`.
"""

from tests.log.contract_groups import GroupContract
from tests.log.contract_messages import MessageContract
from tests.log.contract_transactions import TransactionContract


class LogContract(MessageContract, GroupContract, TransactionContract):
    """Everything."""
