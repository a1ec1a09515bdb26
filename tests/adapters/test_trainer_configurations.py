"""Each file of docs/examples/training/trainers is read by its trainer's own loader, and its reward function scores."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "training" / "trainers"
ADAPTERS = Path(__file__).parents[2] / "kernelforge" / "adapters"


def loaded(name: str) -> ModuleType:
    """A program of the folder as a module, which its classes can be pickled from."""
    module_name = f"trainer_{name}"
    spec = importlib.util.spec_from_file_location(module_name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def options_of(script: str) -> list[str]:
    """The arguments after the program, of a shell script that ends in ``exec python ...``."""
    command = (FOLDER / script).read_text().partition("exec python ")[2].replace("\\\n", " ")
    return shlex.split(command)[:-1]


@pytest.mark.slow
def test_prompts_have_the_columns_that_trainers_read(server, tmp_path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(sys, "argv", ["prompts.py", "--output", str(tmp_path)])
    loaded("prompts").main()
    (row,) = map(json.loads, (tmp_path / "prompts.jsonl").read_text().splitlines())
    assert row["prompt"] == [{"role": "user", "content": "Write it."}]
    assert {row["task"], row["reward_model"]["ground_truth"], row["extra_info"]["task"]} == {"core/swish"}
    parquet = datasets.load_dataset("parquet", data_files=str(tmp_path / "prompts.parquet"), split="train")
    assert parquet[0] == row


def test_verl_composes_its_configuration_and_scores(server) -> None:
    pytest.importorskip("verl")
    hydra = pytest.importorskip("hydra")
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.config import validate_config

    with hydra.initialize_config_dir(str(FOLDER), version_base=None):
        config = hydra.compose("verl")
    validate_config(config, use_reference_policy=False, use_critic=False)
    answer = asyncio.run(
        get_custom_reward_fn(config)(
            data_source="kernelforge",
            solution_str="1.5",
            ground_truth="core/swish",
            extra_info={"task": "core/swish"},
        )
    )
    assert answer["score"] == 1.5
    (scored,) = server.scored
    assert (scored.policy, scored.profile, scored.run_id) == ("predicted/1", True, "verl")


@pytest.mark.parametrize("name", ["openrlhf_reward", "slime_reward"])
def test_reward_files_score(server, name: str) -> None:
    module = loaded(name)
    if name == "openrlhf_reward":
        assert module.reward_func(["Write it. 1.5"], ["Write it. "], ["core/swish"])["rewards"].tolist() == [1.5]
    else:
        sample = SimpleNamespace(response="1.5", label="core/swish", metadata={}, prompt="Write it.")
        assert asyncio.run(module.custom_rm(SimpleNamespace(reward_key=None), sample)) == 1.5
    assert (server.scored[0].policy, server.scored[0].profile) == ("predicted/1", True)


def test_openrlhf_takes_every_option(monkeypatch) -> None:
    folder = pytest.importorskip("openrlhf").__path__[0]
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *options_of("openrlhf.sh")[2:]])
    seen: list[Any] = []
    # vLLM and DeepSpeed, which the program's modules import, need CUDA; its parser of options is its main block.
    for name in ("openrlhf.trainer.ray", "openrlhf.trainer.ray.launcher", "openrlhf.trainer.ray.ppo_actor"):
        monkeypatch.setitem(sys.modules, name, _Anything(name))
    monkeypatch.setitem(sys.modules, "openrlhf.trainer.ray.ppo_critic", _Anything("ppo_critic"))
    monkeypatch.setitem(
        sys.modules, "openrlhf.utils", _Anything("utils", get_strategy=seen.append, __path__=[f"{folder}/utils"])
    )
    with pytest.raises(AttributeError):  # get_strategy gave None
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    (arguments,) = seen
    assert arguments.data.label_key == "task"
    assert arguments.reward.remote_url[0].endswith("openrlhf_reward.py")


class _Anything(ModuleType):
    """A module that has every name."""

    __path__: list[str] = []

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def test_skyrl_takes_every_argument(server) -> None:
    pytest.importorskip("skyrl")
    config = loaded("skyrl_train").configuration(["trainer.seed=3"])
    assert (config.environment.env_class, config.generator.max_turns, config.trainer.seed) == ("kernelforge", 4, 3)


def test_areal_loads_its_configuration(server, policy) -> None:
    pytest.importorskip("areal")
    from areal.api.cli_args import PPOConfig, parse_cli_args, to_structured_cfg
    from omegaconf import OmegaConf

    from kernelforge.adapters.areal import KernelAgent

    # As load_expr_config does, but for the log, whose services' packages it imports.
    parsed, _ = parse_cli_args(["--config", str(FOLDER / "areal.yaml")])
    config = OmegaConf.to_object(to_structured_cfg(parsed, PPOConfig))
    assert (config.rollout.agent.turn_discount, config.train_dataset.path) == (0.4, "prompts.parquet")
    program = ast.parse((FOLDER / "areal_train.py").read_text())
    constants = {
        node.targets[0].id: ast.literal_eval(node.value) for node in program.body if isinstance(node, ast.Assign)
    }
    policy.replies = ["0.5", "1.0", "1.5", "2.0"]
    agent = KernelAgent(turns=constants["TURNS"], scorer=constants["SCORER"], temperature=config.gconfig.temperature)
    rewards = asyncio.run(agent.run({"task": "core/swish"}, base_url=policy.url, api_key="session", http_client=None))
    assert list(rewards.values()) == [0.5, 1.0, 1.5, 2.0]


def test_tinker_builds_its_configuration_and_groups(server, monkeypatch) -> None:
    pytest.importorskip("tinker_cookbook")
    from tinker_cookbook import tokenizer_utils

    from tests.adapters.character_tokenizer import character_tokenizer

    module = loaded("tinker_train")
    config = module.configuration(
        ["max_tokens=4096", "dataset_builder.renderer_name=role_colon", "dataset_builder.model_name=characters"]
    )
    assert config.max_tokens == 4096
    tokenizer_utils.register_tokenizer("characters", character_tokenizer)
    try:
        data, _ = asyncio.run(config.dataset_builder())
    finally:
        tokenizer_utils.unregister_tokenizer("characters")
    assert len(data) == 2
    assert data.get_batch(0)[0].task == "core/swish"


def test_vf_eval_reads_its_configuration(server, monkeypatch, tmp_path, capsys) -> None:
    pytest.importorskip("verifiers.v1")
    from verifiers.v1.cli.eval.main import main

    monkeypatch.syspath_prepend(str(ADAPTERS / "verifiers_v1"))
    monkeypatch.chdir(tmp_path)
    main(["@", str(FOLDER / "verifiers.toml"), "-m", "policy", "--dry-run"])


def test_prime_rl_and_vf_eval_are_given_the_same_environment() -> None:
    prime_rl, verifiers = (tomllib.loads((FOLDER / name).read_text()) for name in ("prime_rl.toml", "verifiers.toml"))
    (source,) = prime_rl["orchestrator"]["train"]["source"]
    of_prime_rl, of_verifiers = source["env"], verifiers["env"]
    assert of_prime_rl["taskset"]["task"].pop("run_id") == "prime-rl"
    assert of_verifiers["taskset"]["task"].pop("run_id") == "verifiers"
    assert of_prime_rl == of_verifiers
