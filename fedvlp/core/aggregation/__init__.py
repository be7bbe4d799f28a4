"""How the server makes one state of several clients' uploads: means, robust aggregators, optimizers.

A strategy says what is combined, and its aggregator how. ``trainer.server.aggregation`` puts one aggregator into all
strategies that average.
"""

from fedvlp.core.aggregation.base import Aggregator, OuterAggregator, WeightedMean
from fedvlp.core.aggregation.privacy import DPFedAvg
from fedvlp.core.aggregation.robust import CoordinateMedian, FedGMA, Krum, MultiKrum, NormClipping, TrimmedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam, FedYogi, ServerMomentum, ServerOptimizer

__all__ = [
    "Aggregator",
    "CoordinateMedian",
    "DPFedAvg",
    "FedAdam",
    "FedGMA",
    "FedYogi",
    "Krum",
    "MultiKrum",
    "NormClipping",
    "OuterAggregator",
    "ServerMomentum",
    "ServerOptimizer",
    "TrimmedMean",
    "WeightedMean",
]
