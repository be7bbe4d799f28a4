"""Server side of a phase: what each client downloads, and how uploads become the next server state."""

from fedvlp.core.strategies.averaging import ByName, FedAvg
from fedvlp.core.strategies.base import Local, Reducer, Strategy, Wrapper
from fedvlp.core.strategies.slots import IndicatorMean, Slots, clients_of_group
from fedvlp.core.strategies.wrappers import MovingAverage, ServerComputed, beta_share, ema_share, gaussian_share

__all__ = [
    "ByName",
    "FedAvg",
    "IndicatorMean",
    "Local",
    "MovingAverage",
    "Reducer",
    "ServerComputed",
    "Slots",
    "Strategy",
    "Wrapper",
    "beta_share",
    "clients_of_group",
    "ema_share",
    "gaussian_share",
]
