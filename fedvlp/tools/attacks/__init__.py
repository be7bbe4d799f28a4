"""Attacks of hostile clients, to test rules and methods against.

Nothing but commands and experiments imports it: a federation knows an attack by ``fedvlp.training.cohort`` alone.
"""

from fedvlp.tools.attacks.bad_prompt_fl import BadPromptFL
from fedvlp.tools.attacks.data_attacks import BackdoorPatch, LabelFlip
from fedvlp.tools.attacks.model_attacks import GaussianNoise, Scaling, SignFlip

__all__ = ["BackdoorPatch", "BadPromptFL", "GaussianNoise", "LabelFlip", "Scaling", "SignFlip"]
