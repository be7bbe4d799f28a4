"""One method a file. Importing this package makes their short names known to the command line."""

from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.single_domain import SingleDomain
from fedvlp.methods.trip import TRIP
from fedvlp.methods.zero_shot import ZeroShotCLIP

__all__ = ["TRIP", "PromptFL", "SingleDomain", "ZeroShotCLIP"]
