"""One method a file. Importing this package makes their short names known to the command line."""

from fedvlp.methods.adapt import ADAPT
from fedvlp.methods.diprompt import DiPrompT
from fedvlp.methods.fed_dpt import FedDPT
from fedvlp.methods.plan import PLAN
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.single_domain import SingleDomain
from fedvlp.methods.trip import TRIP
from fedvlp.methods.zero_shot import ZeroShotCLIP

__all__ = ["ADAPT", "PLAN", "TRIP", "DiPrompT", "FedDPT", "PromptFL", "SingleDomain", "ZeroShotCLIP"]
