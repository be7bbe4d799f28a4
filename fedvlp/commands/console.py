"""What the commands around LightningCLI show: mistakes as they were raised, and no notes of Lightning's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedvlp.utils.errors import UserError


def quiet_lightning() -> None:
    """Leaves out what Lightning says of devices and seeds; its warnings stay."""
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Lets a mistake of the user come out as it was raised, not as the parser wraps it.

    Raises:
        UserError: in place of a ValueError that it caused.
    """
    try:
        yield
    except ValueError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__
        raise
