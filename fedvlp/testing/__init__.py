"""Contract tests for custom classes. Within the library, only ``fedvlp doctor`` imports this package.

Each function tries a class or an object, and raises :class:`ContractError` if it breaks a rule::

    from fedvlp.testing import check_method

    def test_contract():
        check_method(MyMethod, config="my_method")

No test runner is needed, and nothing is downloaded.
"""

from fedvlp.testing.aggregation import check_aggregator, check_strategy
from fedvlp.testing.contract import ContractError
from fedvlp.testing.data import check_data
from fedvlp.testing.method import check_method

__all__ = ["ContractError", "check_aggregator", "check_data", "check_method", "check_strategy"]
