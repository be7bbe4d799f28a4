"""What a class of one's own must keep to, as functions for its tests. Nothing imports it.

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
    from fedvlp.testing.aggregator import check_aggregator as check_aggregator
    from fedvlp.testing.data import check_data as check_data
    from fedvlp.testing.failures import ContractError as ContractError
    from fedvlp.testing.method.check import check_method as check_method
    from fedvlp.testing.strategy import check_strategy as check_strategy

_MODULES = {
    "ContractError": "failures",
    "check_aggregator": "aggregator",
    "check_data": "data",
    "check_method": "method.check",
    "check_strategy": "strategy",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedvlp.testing' has no attribute {name!r}")
    return getattr(import_module(f"fedvlp.testing.{_MODULES[name]}"), name)
