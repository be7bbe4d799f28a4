"""How the commands around LightningCLI are shown: without notes of Lightning's own."""

from __future__ import annotations

import logging


def quiet_lightning() -> None:
    """Leaves out what Lightning says of devices and seeds; its warnings stay."""
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
