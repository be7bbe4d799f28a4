"""The synthetic images of ``fedvlp.testing``, under the names by which tests know them."""

from fedvlp.testing.runs import CLASSES as CLASSES
from fedvlp.testing.runs import DOMAINS as DOMAINS
from fedvlp.testing.runs import draw as draw
