"""The reward function for slime's ``--custom-rm-path``."""

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.slime import reward_function

custom_rm = reward_function(Scorer(policy="predicted/1", profile=True, run_id="slime"))
