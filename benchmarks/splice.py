"""Predicted gain of whole models of which one group is a kernel of the built-in Coder, from capture to splice.

Ten models: five architectures of `transformers` with small random configurations, left out where it is not installed,
and five networks of suites `level3` and `llm` at their small sizes. Each is captured; the group with the largest share
that the Coder solves is improved for `--rounds` and becomes a package. It is built as a wheel, which pip installs, and
put into the model from there. Prints a row for each model; exits with 1 where the outputs of one are not equal.

    python benchmarks/splice.py [MODEL ...] [--work FOLDER] [--top N] [--rounds N] [--python PYTHON]

Packages are installed for PYTHON, of a fresh environment with KernelForge and the model's own packages, where the model
is checked too; without it into an empty environment, and the model is checked by this Python.

With `--capture` models are captured and nothing more: twenty architectures and every network of `level3`, a row each of
its operators, its groups and how many of these can be tasks; exits with 1 where one has no graph.

A model is a name of the table, such as `llama` or `level3/mlp`. `--work` keeps what was made, and goes on from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kernelforge.capture.records import Capture
from kernelforge.capture.suite import CAPTURE
from kernelforge.packaging.manifest import MANIFEST
from kernelforge.packaging.splice_check import PredictedNumber, Splice
from kernelforge.tasks import load_suite, load_task, size_source

_TRANSFORMERS: Final = """
import torch
from transformers import {classes}

def make_model():
    return {model}({config}({arguments})).eval()

def make_inputs():
    return {inputs}
"""
_TOKENS: Final = '{"input_ids": torch.randint(0, 1000, (2, 96))}'
_DECODER: Final = "vocab_size=1000, hidden_size=128, intermediate_size=344, num_attention_heads=4, use_cache=False"
ARCHITECTURES: Final = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", f"{_DECODER}, num_hidden_layers=4, num_key_value_heads=2", _TOKENS),
    "qwen": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        f'{_DECODER}, num_hidden_layers=2, num_key_value_heads=2, attn_implementation="eager"',
        _TOKENS,
    ),
    "bert": (
        "BertModel",
        "BertConfig",
        "vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256",
        _TOKENS,
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        "hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=64, "
        "patch_size=8, num_labels=10",
        '{"pixel_values": torch.randn(2, 3, 64, 64)}',
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        "vocab_size=1000, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False",
        '{"input_ids": torch.randint(0, 1000, (2, 16))}',
    ),
}
"""Classes of model and configuration, its arguments, and the model's inputs."""
_FOUR_HEADS: Final = "vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4"
_GROUPED: Final = f"{_FOUR_HEADS}, num_key_value_heads=2, intermediate_size=256, use_cache=False"
_SMALL_VISION: Final = "num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=16"
_IMAGES: Final = '{"pixel_values": torch.randn(2, 3, 64, 64)}'
OTHER_ARCHITECTURES: Final = {
    "qwen3": ("Qwen3Model", "Qwen3Config", f"{_GROUPED}, head_dim=32", _TOKENS),
    "mistral": ("MistralModel", "MistralConfig", _GROUPED, _TOKENS),
    "mixtral": ("MixtralModel", "MixtralConfig", f"{_GROUPED}, num_local_experts=4", _TOKENS),
    "gemma2": ("Gemma2Model", "Gemma2Config", f"{_GROUPED}, head_dim=32", _TOKENS),
    "phi3": ("Phi3Model", "Phi3Config", f"{_GROUPED}, pad_token_id=0", _TOKENS),
    "gpt2": ("GPT2Model", "GPT2Config", "n_embd=128, n_layer=2, n_head=4, vocab_size=1000, use_cache=False", _TOKENS),
    "roberta": ("RobertaModel", "RobertaConfig", f"{_FOUR_HEADS}, intermediate_size=256", _TOKENS),
    "t5": (
        "T5EncoderModel", "T5Config", "d_model=128, num_layers=2, num_heads=4, d_kv=32, d_ff=256, vocab_size=1000",
        _TOKENS,
    ),
    "mamba2": (
        "Mamba2Model",
        "Mamba2Config",
        "vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_heads=8, head_dim=32, n_groups=1, state_size=16, "
        "use_cache=False",
        _TOKENS,
    ),
    "rwkv": (
        "RwkvModel", "RwkvConfig",
        "vocab_size=1000, hidden_size=128, num_hidden_layers=2, attention_hidden_size=128, use_cache=False", _TOKENS,
    ),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", f"hidden_size=128, {_SMALL_VISION}", _IMAGES),
    "convnext": ("ConvNextModel", "ConvNextConfig", "hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1]", _IMAGES),
    "resnet": ("ResNetModel", "ResNetConfig", "embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]", _IMAGES),
    "swin": (
        "SwinModel", "SwinConfig", "image_size=64, embed_dim=32, depths=[1, 1], num_heads=[2, 4], window_size=4",
        _IMAGES,
    ),
    "whisper": (
        "WhisperForAudioClassification",
        "WhisperConfig",
        "d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256, num_mel_bins=40, "
        "max_source_positions=64, vocab_size=1000, pad_token_id=0",
        '{"input_features": torch.randn(2, 40, 128)}',
    ),
}  # fmt: skip
"""Those that are captured alone, by ``--capture``."""
NETWORKS: Final = ("level3/mlp", "level3/resnet_block", "level3/encoder_block", "llm/swiglu", "llm/rmsnorm_residual")
_OF_TASK: Final = """

def make_model():
    return Model(*get_init_inputs()).eval()

def make_inputs():
    return get_inputs()
"""


class _Skipped(Exception):
    """A model of which there is no row; the message says why."""


def model_text(name: str) -> str:
    """The file of a model, with its two functions."""
    architectures = ARCHITECTURES | OTHER_ARCHITECTURES
    if name in architectures:
        if importlib.util.find_spec("transformers") is None:
            raise _Skipped("transformers is not installed")
        model, config, arguments, inputs = architectures[name]
        return _TRANSFORMERS.format(
            classes=f"{model}, {config}", model=model, config=config, arguments=arguments, inputs=inputs
        )
    return size_source(load_task(name), "small") + _OF_TASK


def command(*words: str | Path, folder: Path, python: str | Path = sys.executable) -> str:
    """Output of a command of this package."""
    done = subprocess.run([python, "-m", "kernelforge", *map(str, words)], cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise _Skipped(f"{words[0]} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def packaged(folder: Path, top: int, rounds: int) -> Path:
    """A package of the group with the largest share that the built-in Coder solves."""
    suite, package = folder / "suite", folder / "package"
    if not suite.exists():
        command(
            "capture", "model.py:make_model", "--inputs", "make_inputs", "--output", suite, "--top", str(top),
            folder=folder,
        )  # fmt: skip
    if not (suite / CAPTURE).exists():
        raise _Skipped("no group can be a task")
    capture = Capture.model_validate_json((suite / CAPTURE).read_text())
    for task in [group.task for group in capture.groups if group.task][:top]:
        if not package.exists():
            run = ("run", "--suite", suite, "--task", task, "--rounds", str(rounds), "--coder", "builtin", "--no-tune")
            command(*run, "--results", "results", folder=folder)
            command("package", f"latest/{task}", "--output", package, "--results", "results", folder=folder)
    if not package.exists():
        raise _Skipped(f"the built-in Coder solves none of {top} groups")
    return package


def installed(package: Path, folder: Path, python: Path | None) -> Path:
    """The folder of a package's module where pip has installed its wheel: for a Python, or in an empty environment."""
    wheels, environment = folder / "wheels", folder / "environment"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, package], check=True)
    (wheel,) = wheels.glob("*.whl")
    if python is None:
        venv.create(environment, clear=True)
        subprocess.run(
            [*pip, "--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel], check=True
        )
    else:
        environment = python.parent.parent
        # With its dependencies, which have to be there already. A package of the same name may be of another model.
        subprocess.run([*pip, "--python", python, "install", "--force-reinstall", "--no-deps", wheel], check=True)
        subprocess.run([*pip, "--python", python, "check"], check=True)
    module = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(f"/{MANIFEST}"))
    (manifest,) = environment.glob(f"lib/*/site-packages/{module}")
    if python is not None:
        subprocess.run([python, "-c", f"import {manifest.parent.name}"], cwd=folder, check=True)
    return manifest.parent


def spliced(name: str, folder: Path, top: int, rounds: int, python: Path | None) -> Splice:
    """All steps for one model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(model_text(name))
    module = installed(packaged(folder, top, rounds), folder, python)
    text = command(
        "splice", "model.py:make_model", "--inputs", "make_inputs", "--package", module, "--json",
        folder=folder, python=python or sys.executable,
    )  # fmt: skip
    if not text:
        raise _Skipped("splice gave no answer")
    answer: dict[str, Any] = json.loads(text)
    return Splice.model_validate(answer)


def captured_row(name: str, folder: Path) -> str:
    """The row of a model that is captured, in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(model_text(name))
    arguments = ("capture", "model.py:make_model", "--inputs", "make_inputs", "--device", "emulated:h100", "--json")
    capture = Capture.model_validate_json(command(*arguments, folder=folder))
    operators = sum(node.kind == "op" for node in capture.nodes)
    tasks = sum(not group.no_task for group in capture.groups)
    calls = sum(len(group.calls) for group in capture.groups)
    return f"| {name} | {operators} | {len(capture.groups)}, {calls} calls | {tasks} | {capture.total_us:,.0f} us |"


def captures(models: Sequence[str], work: Path) -> bool:
    """Print a row for each model; whether each that is there has a graph."""
    print("| model | operators | groups | that can be tasks | eager |\n|---|---|---|---|---|", flush=True)
    everything = True
    for name in models:
        try:
            print(captured_row(name, work / name.replace("/", "-")), flush=True)
        except _Skipped as reason:
            everything &= "not installed" in str(reason)
            print(f"left out: {name}: {reason}", file=sys.stderr, flush=True)
    return everything


def row(name: str, splice: Splice) -> str:
    """One row of the table, in Markdown."""
    (package,) = splice.packages
    speedup = package.speedup
    cells = [
        name,
        f"{package.group}, {package.replaced} of {package.calls}",
        "" if speedup is None else f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})",
        f"{100 * package.share:.0f} %",
        _ratio(splice.eager.gain),
        _ratio(splice.graph.gain),
        splice.check.verdict + ("" if splice.check.error is None else f", {splice.check.error:.2f}"),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(gain: PredictedNumber) -> str:
    return f"{gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f})"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--capture", action="store_true", help="capture models, and nothing more")
    parser.add_argument("--work", type=Path, help="folder that keeps suites, results and packages")
    parser.add_argument("--top", type=int, default=3, help="groups that are tried, the largest share first")
    parser.add_argument("--rounds", type=int, default=5, help="most attempts at a group, the first design included")
    parser.add_argument("--python", type=Path, help="of a fresh environment that has KernelForge")
    options = parser.parse_args()
    python = options.python and options.python.absolute()
    if options.capture:
        networks = [f"level3/{task.name}" for task in load_suite("level3").tasks]
        with tempfile.TemporaryDirectory() as temporary:
            work = (options.work or Path(temporary)).resolve()
            return int(not captures(options.models or [*ARCHITECTURES, *OTHER_ARCHITECTURES, *networks], work))
    print("| model | group, calls | kernel | share | model, eager | model, CUDA graph | outputs, error |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    equal = True
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        for name in options.models or [*ARCHITECTURES, *NETWORKS]:
            try:
                splice = spliced(name, work / name.replace("/", "-"), options.top, options.rounds, python)
            except _Skipped as reason:
                print(f"left out: {name}: {reason}", file=sys.stderr, flush=True)
                continue
            equal &= splice.check.verdict == "equal"
            print(row(name, splice), flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
