"""How the server makes one state of several clients' uploads: means, robust rules, optimizers. Imports core's states.

A strategy says what is combined; its rule says how. ``Federation(aggregation=...)`` puts one rule into all strategies
that average.
"""

from fedvlp.core.aggregation.base import AggregationRule, describe_rule
from fedvlp.core.aggregation.clipping import NormClipping
from fedvlp.core.aggregation.coordinatewise import CoordinateMedian, TrimmedMean
from fedvlp.core.aggregation.dp_fed_avg import DPFedAvg
from fedvlp.core.aggregation.gradient_masking import FedGMA
from fedvlp.core.aggregation.krum import Krum, MultiKrum
from fedvlp.core.aggregation.mean import WeightedMean
from fedvlp.core.aggregation.server_optimizers import FedAdam, FedYogi, ServerMomentum, ServerOptimizer

__all__ = [
    "AggregationRule",
    "CoordinateMedian",
    "DPFedAvg",
    "FedAdam",
    "FedGMA",
    "FedYogi",
    "Krum",
    "MultiKrum",
    "NormClipping",
    "ServerMomentum",
    "ServerOptimizer",
    "TrimmedMean",
    "WeightedMean",
    "describe_rule",
]
