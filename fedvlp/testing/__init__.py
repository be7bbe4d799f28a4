"""What a custom class must keep to, as functions for its tests. Nothing in the library imports it.

Each takes a class or an object, tries it, and raises :class:`ContractError` with what it must do if it does not::

    from fedvlp.testing import check_method

    def test_contract():
        check_method(MyMethod, config="my_method")

No test runner is needed, and nothing is downloaded. The names below are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedvlp.testing.aggregation import check_aggregator as check_aggregator
    from fedvlp.testing.aggregation import check_strategy as check_strategy
    from fedvlp.testing.contract import ContractError as ContractError
    from fedvlp.testing.data import check_data as check_data
    from fedvlp.testing.method import check_method as check_method

_MODULES = {
    "ContractError": "contract",
    "check_aggregator": "aggregation",
    "check_data": "data",
    "check_method": "method",
    "check_strategy": "aggregation",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedvlp.testing' has no attribute {name!r}")
    return getattr(import_module(f"fedvlp.testing.{_MODULES[name]}"), name)
