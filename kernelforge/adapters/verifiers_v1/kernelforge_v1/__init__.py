"""KernelForge's tasks as a verifiers v1 taskset, with an environment for one turn or several."""

from .env import KernelForgeEnv, KernelForgeEnvConfig
from .taskset import KernelForgeConfig, KernelForgeTaskset

__all__ = ["KernelForgeConfig", "KernelForgeEnv", "KernelForgeEnvConfig", "KernelForgeTaskset"]
