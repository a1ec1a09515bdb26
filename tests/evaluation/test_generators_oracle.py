"""Generators in the oracle's jail: admission by torch; their text does not get there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from kernelforge.errors import SandboxError, TaskError, UsageError
from kernelforge.evaluation.generators.parser import parse_generator
from kernelforge.evaluation.generators.recipe import OPERATIONS, Recipe
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.evaluation.oracle.worker.admission_checks import generator_findings
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.records import DType, Task, TensorSpec
from kernelforge.sandbox import Child, Zygote
from kernelforge.sandbox.channel import Frame
from kernelforge.sandbox.policy import Limits
from tests.evaluation.oracle_tasks import make_task
from tests.support.shipped_prompts import shipped

CORE = shipped("core")
INPUTS = [TensorSpec.contiguous((8, 8), DType.FLOAT32)]
SIZES = ["small", "hidden_odd", "hidden_quad", "hidden_tiny"]


def recipe_for(oracle: Oracle, *values: str) -> Recipe:
    """A recipe that fills each input with an expression over x0, x1, ..."""
    names = ", ".join(f"x{position}" for position in range(len(values)))
    inputs = oracle.facts(["small"]).sizes[0].inputs
    return parse_generator(f"def inputs({names}):\n    return {', '.join(values)}\n", inputs)


def tried(zygote: Zygote, task: Task, *values: str, size: str = "small") -> str:
    """The reason that a generator is refused at a size; empty where it is admitted."""
    with Oracle(zygote, task) as oracle:
        (finding,) = oracle.try_generator("g", recipe_for(oracle, *values), [size])
        assert finding.ok == (not finding.text)
        return finding.text


@pytest.mark.slow
def test_a_generator_that_torch_passes_is_admitted_at_every_size(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("softmax")) as oracle:
        findings = oracle.try_generator("low_rows", recipe_for(oracle, "uniform(-900, -800)"), SIZES)
    assert [(finding.size, finding.ok, finding.text) for finding in findings] == [(size, True, "") for size in SIZES]


@pytest.mark.parametrize(
    ("forward", "inputs", "fill", "reason"),
    [
        ("a.log()", "torch.rand(64) + 0.1", "-1 - abs(x0)", "not finite"),
        ("a * 2", "torch.randn(64)", "constant(inf)", "not finite"),
        ("a * 1e30", "torch.randn(64)", "1e30 * normal()", "not finite"),
        ("a.sum()", "torch.randn(4096)", "alternate(65504, -65504) + normal()", "not accurate"),
        ("a - 1000", "torch.randn(8, 64)", "near(1000, ulps=3)", "ill-conditioned"),
        ("F.layer_norm(a, (64,))", "torch.randn(8, 64)", "constant(1000)", "ill-conditioned"),
        ("a[:8] * 2 if float(a.max()) < 1e6 else a[:2]", "torch.randn(64)", "constant(1e7)", "another shape"),
        ("((a * 10 - 7) * 1e9).long()", "torch.randn(8, 64)", "constant(0.7)", "ill-conditioned"),
        ("a * 2", "torch.randn(64)", "inf - inf", "NaN"),
        ("a * 2", "torch.randn(64)", "index(3)", "no axis"),
    ],
)
def test_inputs_that_torch_itself_does_not_pass_are_refused(
    zygote: Zygote, forward: str, inputs: str, fill: str, reason: str
) -> None:
    task = make_task(forward, inputs)
    assert reason in tried(zygote, task, fill)


@pytest.mark.slow
def test_infinity_is_admitted_where_results_are_finite(zygote: Zygote) -> None:
    task = make_task("torch.softmax(a, 1)", "torch.randn(8, 64)")
    assert tried(zygote, task, "where(chance(0.3), -inf, x0)") == ""
    assert "not finite" in tried(zygote, task, "constant(-inf)")


@pytest.mark.slow
def test_indices_stay_within_what_the_task_draws(zygote: Zygote) -> None:
    task = make_task("F.embedding(b, a)", "torch.randn(10, 4), torch.randint(0, 10, (64,))")
    for fill in ("constant(1000000000)", "constant(-5)", "inf + x1 * 0", "pick(low(x1), high(x1))"):
        assert tried(zygote, task, "x0", fill) == ""
    with Oracle(zygote, task) as oracle:
        oracle.use_generators({"far": recipe_for(oracle, "x0", "constant(1000000000)")})
        data = oracle.draw("small", "tester:far", 3).tensors[1]
    assert set(memoryview(data).cast("q")) == {9}


@pytest.mark.slow
def test_sorted_offsets_stay_sorted(zygote: Zygote) -> None:
    task = make_task(
        "F.embedding_bag(b, a, c)",
        "torch.randn(10, 4), torch.randint(0, 10, (64,)), torch.cat([torch.zeros(1), torch.rand(7) * 64])"
        ".long().sort().values",
    )
    assert "sorted" in tried(zygote, task, "x0", "x1", "descending(x2)")
    assert tried(zygote, task, "x0", "high(x1)", "x2") == ""


def test_a_generator_is_not_used_at_sizes_that_cost_too_much(zygote: Zygote) -> None:
    assert "elements" in tried(zygote, make_task("a * 2", "torch.randn(1025, 1024)"), "constant(3)")


@pytest.mark.slow
def test_inputs_that_kill_the_reference_are_refused_and_the_child_is_replaced(zygote: Zygote) -> None:
    task = make_task("a * 2 if float(a.max()) < 1e9 else os._exit(3)", "torch.rand(64)", head="import os")
    with Oracle(zygote, task) as oracle:
        recipe = recipe_for(oracle, "constant(1e10)")
        with pytest.raises(SandboxError):
            oracle.try_generator("deadly", recipe, ["small"])
        assert oracle.families("small")


@pytest.mark.slow
def test_generators_are_known_again_to_a_child_that_replaces_another(zygote: Zygote) -> None:
    task = make_task("a * 2", "torch.randn(64) if N else os._exit(3)", head="import os\nN = 1")
    sizes = (*task.sizes, task.sizes[1].model_copy(update={"name": "hidden_deadly", "constants": {"N": 0}}))
    with Oracle(zygote, task.model_copy(update={"sizes": sizes})) as oracle:
        oracle.use_generators({"threes": recipe_for(oracle, "constant(3)")})
        first = oracle.draw("small", "tester:threes", 1).tensors
        with pytest.raises(Exception, match="child"):
            oracle.draw("hidden_deadly", "task", 1)
        assert oracle.draw("small", "tester:threes", 1).tensors == first
        oracle.use_generators({})
        with pytest.raises(TaskError, match="no input generator 'threes'"):
            oracle.draw("small", "tester:threes", 1)


def test_a_generator_on_trial_is_not_in_force(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle:
        assert oracle.try_generator("g", recipe_for(oracle, "constant(3)"), ["small"])[0].ok
        with pytest.raises(TaskError, match="no input generator"):
            oracle.draw("small", "tester:g", 1)
        assert "tester:g" not in oracle.families("small")


@pytest.mark.slow
def test_our_own_families_are_drawn_the_same_with_and_without_generators(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("layernorm")) as oracle:
        before = [oracle.draw("small", family, 5) for family in oracle.families("small")]
        oracle.use_generators({"g": recipe_for(oracle, "pick(31, 32, 33)")})
        oracle.draw("small", "tester:g", 5)
        after = [oracle.draw("small", family, 5) for family in oracle.families("small")]
    assert [(draw.tensors, draw.weights) for draw in before] == [(draw.tensors, draw.weights) for draw in after]


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"steps": [], "results": [0]},
        {"steps": [{"op": "exec", "of": []}], "results": [0]},
        {"steps": [{"op": "__import__"}], "results": [0]},
        {"steps": [{"op": "number", "value": "1; import os"}], "results": [0]},
        {"steps": [{"op": "abs", "of": [0]}], "results": [0]},
        {"steps": [{"op": "number", "value": 1, "code": "x"}], "results": [0]},
        {"steps": [{"op": "number", "value": 1}] * 500, "results": [0]},
        {"steps": [{"op": "number", "value": 1}], "results": [None] * 500},
        "def inputs(x): return x",
    ],
)
def test_the_child_refuses_what_is_no_recipe(zygote: Zygote, recipe: Any) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle:
        child = oracle._start()
        for request in (
            {"op": "try", "name": "g", "recipe": recipe, "sizes": ["small"]},
            {"op": "tests", "recipes": {"g": recipe}},
        ):
            reply = child.call(request, timeout_s=60).data
            assert (reply["ok"], reply["error"]) == (False, "UsageError"), reply
            assert "no recipe" in reply["message"]


def test_a_recipe_for_other_inputs_is_refused(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("gelu")) as first, Oracle(zygote, CORE.task("cross_entropy")) as other:
        (finding,) = first.try_generator("g", recipe_for(other, "constant(3)", "x1"), ["small"])
    assert "for 2 inputs, the task has 1" in finding.text


class _Listening:
    """A zygote whose children's requests are written down."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self.sent: list[str] = []

    def spawn(self, limits: Limits | None = None) -> _Listening:
        self._child: Child = self._zygote.spawn(limits)
        return self

    def call(
        self, data: dict[str, Any], blobs: Sequence[bytes | memoryview] = (), *, timeout_s: float | None = None
    ) -> Frame:
        self.sent.append(json.dumps(data))
        return self._child.call(data, blobs, timeout_s=timeout_s)

    def close(self) -> None:
        self._child.close()


CANARY = "canary_7f3a"
WITH_CANARIES = f"""# {CANARY}
def inputs({CANARY}):
    {CANARY}b = normal(3, 1) + {CANARY} # {CANARY}
    return {CANARY}b
"""


def test_nothing_of_a_generators_text_reaches_the_child(zygote: Zygote) -> None:
    listening = _Listening(zygote)
    with Oracle(listening, CORE.task("gelu")) as oracle:
        recipe = parse_generator(WITH_CANARIES, oracle.facts(["small"]).sizes[0].inputs)
        assert oracle.try_generator("g", recipe, ["small"])[0].ok
        oracle.use_generators({"g": recipe})
        oracle.draw("small", "tester:g", 1)
    assert any('"op": "try"' in request for request in listening.sent)
    assert not any(CANARY in request for request in listening.sent)
    words = {step.op for step in recipe.steps}
    assert words <= set(OPERATIONS)


@pytest.mark.slow
def test_working_a_recipe_out_compiles_and_executes_nothing() -> None:
    """An audit hook sees every ``compile`` and ``exec`` of an interpreter, so this one has its own."""
    script = """
import json, sys
from tests.evaluation.oracle_tasks import make_task
from kernelforge.evaluation.oracle.worker.admission_checks import generator_findings
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner as Reckoner
from kernelforge.evaluation.generators.recipe import Recipe
reckoner = Reckoner(make_task("torch.tanh(a)", "torch.randn(8, 8)"))
reckoner.draw("small", "task", 1)
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("compile", "exec") else None)
compile("1", "the hook sees", "eval")
assert seen == ["compile"], seen
recipe = Recipe.model_validate_json(sys.stdin.read())
reckoner.tests["g"] = recipe
print(json.dumps([generator_findings(reckoner, "g", ["small"]), seen]))
"""
    recipe = parse_generator("def inputs(x):\n    return normal(3, 1) + x * pick(1, 2)\n", INPUTS)
    done = subprocess.run(
        [sys.executable, "-c", script], input=recipe.model_dump_json(), text=True, check=True, capture_output=True
    )
    assert json.loads(done.stdout) == [[{"size": "small", "ok": True, "text": ""}], ["compile"]]


def test_an_unknown_size_is_refused(zygote: Zygote) -> None:
    with Oracle(zygote, CORE.task("gelu")) as oracle, pytest.raises(UsageError, match="no size"):
        oracle.try_generator("g", recipe_for(oracle, "constant(3)"), ["huge"])


def test_inputs_that_do_not_follow_the_seed_are_refused() -> None:
    task = make_task("a * 2", "torch.from_numpy(np.random.default_rng().random(8)).float()", head="import numpy as np")
    reckoner = ReferenceRunner(task)
    reckoner.tests["g"] = parse_generator("def inputs(x):\n    return x + 1\n", INPUTS)
    (finding,) = generator_findings(reckoner, "g", ["small"])
    assert "differ" in finding["text"]
