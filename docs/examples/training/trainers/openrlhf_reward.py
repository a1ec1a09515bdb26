"""The reward function for OpenRLHF's ``--reward.remote_url``."""

from kernelforge.adapters.common import Scorer
from kernelforge.adapters.openrlhf import reward_function

reward_func = reward_function(Scorer(policy="predicted/1", profile=True, run_id="openrlhf"))
