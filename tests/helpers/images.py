"""Short import path for the synthetic images of ``fedvlp.testing``."""

from fedvlp.testing.runs import CLASSES as CLASSES
from fedvlp.testing.runs import DOMAINS as DOMAINS
from fedvlp.testing.runs import draw as draw
