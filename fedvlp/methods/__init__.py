"""The methods, one file or folder each. Importing this package makes their short names known to the command line."""

from fedvlp.methods.adapt import ADAPT
from fedvlp.methods.bpl import BPL
from fedvlp.methods.ccst import CCST
from fedvlp.methods.cocoop import CoCoOp
from fedvlp.methods.diprompt import DiPrompT
from fedvlp.methods.do_prompt import DoPrompt
from fedvlp.methods.dp_fpl import DPFPL
from fedvlp.methods.elcfs import ELCFS
from fedvlp.methods.fast_pt import FaSTPT
from fedvlp.methods.fed3r import Fed3R
from fedvlp.methods.fed_adg import FedADG
from fedvlp.methods.fed_apt import FedAPT
from fedvlp.methods.fed_clip import FedCLIP
from fedvlp.methods.fed_cof import FedCOF
from fedvlp.methods.fed_deap import FedDEAP
from fedvlp.methods.fed_dpt import FedDPT
from fedvlp.methods.fed_gda import FedGDA
from fedvlp.methods.fed_lora import FedLoRA
from fedvlp.methods.fed_maple import FedMaPLe
from fedvlp.methods.fed_med_clip import FedMedCLIP
from fedvlp.methods.fed_mvp import FedMVP
from fedvlp.methods.fed_ncm import FedNCM
from fedvlp.methods.fed_otp import FedOTP
from fedvlp.methods.fed_pgp import FedPGP
from fedvlp.methods.fed_pha import FedPHA
from fedvlp.methods.fed_pr import FedPR
from fedvlp.methods.fed_prompt_src import FedPromptSRC
from fedvlp.methods.fed_sr import FedSR
from fedvlp.methods.fed_tpg import FedTPG
from fedvlp.methods.fine_tuning import FineTuning
from fedvlp.methods.hcvp import HCVP
from fedvlp.methods.ivlp import IVLP
from fedvlp.methods.kgcoop import KgCoOp
from fedvlp.methods.linear_probe import LinearProbe
from fedvlp.methods.pfed_mma import PFedMMA
from fedvlp.methods.pfed_moap import PFedMoAP
from fedvlp.methods.pfed_pg import PFedPG
from fedvlp.methods.plan import PLAN
from fedvlp.methods.plot import PLOT
from fedvlp.methods.proda import ProDA
from fedvlp.methods.prograd import ProGrad
from fedvlp.methods.prompt_folio import PromptFolio
from fedvlp.methods.promptfl import PromptFL
from fedvlp.methods.prompts import PromptLearner
from fedvlp.methods.single_domain import SingleDomain
from fedvlp.methods.stable_fdg import StableFDG
from fedvlp.methods.swad import SWAD
from fedvlp.methods.trip.trip import TRIP
from fedvlp.methods.zero_shot import ZeroShotCLIP

__all__ = [
    "ADAPT",
    "BPL",
    "CCST",
    "DPFPL",
    "ELCFS",
    "HCVP",
    "IVLP",
    "PLAN",
    "PLOT",
    "SWAD",
    "TRIP",
    "CoCoOp",
    "DiPrompT",
    "DoPrompt",
    "FaSTPT",
    "Fed3R",
    "FedADG",
    "FedAPT",
    "FedCLIP",
    "FedCOF",
    "FedDEAP",
    "FedDPT",
    "FedGDA",
    "FedLoRA",
    "FedMVP",
    "FedMaPLe",
    "FedMedCLIP",
    "FedNCM",
    "FedOTP",
    "FedPGP",
    "FedPHA",
    "FedPR",
    "FedPromptSRC",
    "FedSR",
    "FedTPG",
    "FineTuning",
    "KgCoOp",
    "LinearProbe",
    "PFedMMA",
    "PFedMoAP",
    "PFedPG",
    "ProDA",
    "ProGrad",
    "PromptFL",
    "PromptFolio",
    "PromptLearner",
    "SingleDomain",
    "StableFDG",
    "ZeroShotCLIP",
]
