"""Loggers whose messages show names that others chose as they are."""

from __future__ import annotations

import logging

from fedvlp.utils.visible import visible_message


def visible_log(name: str) -> logging.Logger:
    """Returns the logger of a module, whose messages show no name as more than it is.

    Args:
        name: of the module.
    """
    log = logging.getLogger(name)
    log.addFilter(_make_visible)
    return log


def _make_visible(record: logging.LogRecord) -> bool:
    """Puts the visible message into a record, and lets it pass."""
    record.msg = visible_message(record.getMessage())
    record.args = ()
    return True
