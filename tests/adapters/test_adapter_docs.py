"""docs/adapters.md says nothing that cannot be run."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
FRAMEWORKS = {"SkyRL": "skyrl_gym", "Tinker": "tinker_cookbook"}
NAMES = sorted(set(re.findall(r"kernelforge\.adapters\.(?:verl|trl|openrlhf|slime|areal)\.\w+", PAGE)))


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_the_snippets_of_a_section_run(server, section: str) -> None:
    title = section.partition("\n")[0]
    if title in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[title])
    names: dict[str, Any] = {"__name__": "snippet"}
    for snippet in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        if title == "TRL" and "import GRPOTrainer" in snippet and importlib.util.find_spec("trl") is None:
            continue
        exec(compile(snippet, title, "exec"), names)
    if title == "What they share":
        assert names["rows"] == [{"task": "core/swish", "prompt": "Write it."}]
        assert names["scorer"].score_blocking("core/swish", "1.5").require() == 1.5


@pytest.mark.parametrize("name", NAMES)
def test_what_a_configuration_names_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_every_module_is_on_the_page() -> None:
    folder = Path(importlib.import_module("kernelforge.adapters").__path__[0])
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "common"}
    table = PAGE.partition("| Framework |")[2].partition("\n\n")[0]
    assert {row.split("|")[2].strip(" `/") for row in table.splitlines()[2:]} == modules | {"verifiers_v1"}
