"""Server side of a phase: what each client downloads, and how uploads become the next server state."""

from fedvlp.strategies.averaging import ByName, FedAvg
from fedvlp.strategies.base import BroadcastShared, Strategy
from fedvlp.strategies.derived import Derived, Sends
from fedvlp.strategies.local import Local
from fedvlp.strategies.moving_average import MovingAverage, beta_share, ema_share
from fedvlp.strategies.slots import IndicatorMean, Slots

__all__ = [
    "BroadcastShared",
    "ByName",
    "Derived",
    "FedAvg",
    "IndicatorMean",
    "Local",
    "MovingAverage",
    "Sends",
    "Slots",
    "Strategy",
    "beta_share",
    "ema_share",
]
