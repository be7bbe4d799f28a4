"""The synthetic images of ``fedvlp.testing``, under the names by which tests know them."""

from fedvlp.testing.images import CLASSES as CLASSES
from fedvlp.testing.images import DOMAINS as DOMAINS
from fedvlp.testing.images import draw as draw
