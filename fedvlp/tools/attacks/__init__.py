"""Attacks by hostile clients, for tests of aggregators and methods."""

from fedvlp.tools.attacks.bad_prompt_fl import BadPromptFL
from fedvlp.tools.attacks.data_attacks import BackdoorPatch, LabelFlip
from fedvlp.tools.attacks.model_attacks import GaussianNoise, Scaling, SignFlip

__all__ = ["BackdoorPatch", "BadPromptFL", "GaussianNoise", "LabelFlip", "Scaling", "SignFlip"]
