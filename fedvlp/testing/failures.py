"""How a check says that something does not keep to its contract."""

from __future__ import annotations


class ContractError(AssertionError):
    """Says what a method, strategy, rule or data set must do and does not; runners of tests show it as a failure."""


def require(is_so: bool, message: str) -> None:
    """Raises ContractError with a message unless something is so."""
    if not is_so:
        raise ContractError(message)
