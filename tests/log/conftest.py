"""The contract's modules are not named `test_*`; their assertions explain themselves all the same."""

import pytest

from tests.support.fixtures import broker, mortal_broker

__all__ = ["broker", "mortal_broker"]

for _name in ("contract", "contract_groups", "contract_messages", "contract_transactions", "home"):
    pytest.register_assert_rewrite(f"tests.log.{_name}")
