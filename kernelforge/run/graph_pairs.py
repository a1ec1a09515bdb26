"""Pairs of CUDA and C made of traced graphs: both are written by rules, and both are judged before a pair is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Final

from kernelforge.agents.base import CoderRequest, TaskContext
from kernelforge.agents.builtin.codegen.c_functions import is_c_name, write_c_function
from kernelforge.agents.builtin.coder import readable, write
from kernelforge.agents.builtin.design import MOVES, Design, without_design
from kernelforge.agents.builtin.ir.operators import lower
from kernelforge.agents.prompting.render import render_translation
from kernelforge.agents.prompts import coder_prompt, fenced
from kernelforge.datasets.graph_augmentation import augmented, may_follow
from kernelforge.datasets.graph_pairs import DroppedGraph, GraphKey, GraphPair, Stage
from kernelforge.errors import TaskError, UnsupportedError
from kernelforge.evaluation.pool import EvaluatorPool, open_admitted
from kernelforge.records import Candidate, Operator, Task, TensorSpec, Verdict, content_hash
from kernelforge.run.task_loop import make_oracle_context
from kernelforge.tasks.constants import module_constants
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.graph_tasks import SizedGraph, graph_task, sized_graph
from kernelforge.translation.evaluator import CEvaluators, c_candidate

DRAWN_MOVES: Final = ("fuse", "warp-reduce", "tile", "stage", "vectorise", "block-shape")
"""Moves of the built-in Coder of which each pair takes some. Those for tensor cores have no likeness to a C loop."""
_MOST_DRAWS: Final = 6
"""Draws of edits for one augmented graph."""


class GraphPairs:
    """Makes pairs of tasks' graphs.

    Args:
        tasks: whose references are traced, each once; of files that differ in their constants alone, the first.
        pool: evaluates kernels, and traces.
        functions: evaluates C functions; None evaluates neither side.
        seed: from which edits, designs and inputs are drawn.
        augment: augmented graphs of each task.
        earlier: digests of graphs that have a pair.
        texts: hashes of C functions that are one half of a pair, by :func:`text_hash`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        pool: EvaluatorPool,
        functions: CEvaluators | None,
        *,
        seed: int,
        augment: int,
        earlier: Collection[str] = (),
        texts: Collection[str] = (),
    ) -> None:
        self.tasks = unlike_files(tasks)
        Random(content_hash("order", seed)).shuffle(self.tasks)
        self.pool, self.functions = pool, functions
        self.seed, self.augment = seed, augment
        self.earlier, self.texts = set(earlier), set(texts)
        self._graphs: dict[str, SizedGraph | TaskError] = {}

    def make(self, done: Collection[GraphKey] = ()) -> Iterator[GraphPair | DroppedGraph]:
        """Every graph that is not ``done``: its pair, or why there is none.

        Raises:
            DeviceError: no device is left to run on.
            SandboxError: a helper process does not start.
        """
        for task in self.tasks:
            for number in range(self.augment + 1):
                key = GraphKey(f"{task.suite}/{task.name}", number)
                if key in done:
                    continue
                if number and isinstance(self._graph(task), TaskError):
                    break
                yield self._made(task, key)

    def _made(self, task: Task, key: GraphKey) -> GraphPair | DroppedGraph:
        graph = self._graph(task)
        if isinstance(graph, TaskError):
            return DroppedGraph(key, "trace", str(graph))
        rng = Random(content_hash("graph", self.seed, *key))
        edits: tuple[str, ...] = ()
        if key.number:
            drawn = self._augmented(graph, rng)
            if drawn is None:
                return DroppedGraph(key, "augment", "no edit that was drawn makes a graph without a pair")
            graph, edits = drawn
        digest = graph.digest
        if digest in self.earlier:
            return DroppedGraph(key, "repeat", "an earlier graph has the same operators", digest, edits)
        stage: Stage
        name = "_".join(["graph", *re.findall(r"[a-z0-9]+", key.task), *([str(key.number)] * bool(key.number))])
        try:
            stage = "task"
            made = graph_task(task, graph, name, is_c_name)
            with closing(self.pool.oracle(made.task)) as oracle:
                context = make_oracle_context(made.task, oracle.facts(), oracle, self.pool.device)
            stage = "write"
            moves = tuple(move for move in MOVES if move in DRAWN_MOVES and rng.random() < 0.5)
            rendered = write(context, Design(moves))
            attributes = readable(context.facts.at("full").attrs, context.facts.at("small").attrs)
            program = lower(context.graph, attributes, context.small_graph)
            source = write_c_function(name, program, made.extents, made.numbers, made.task.title)
        except (TaskError, UnsupportedError) as error:
            return DroppedGraph(key, stage, str(error), digest, edits)
        if text_hash(source) in self.texts:
            return DroppedGraph(key, "repeat", "an earlier C function has the same text", digest, edits)
        cuda = without_design(rendered.source).lstrip()
        reply = f"{fenced(cuda, 'cuda')}\n\n{fenced(rendered.plan, 'python')}\n"
        judged = made.task.model_copy(update={"c_source": source, "translation": reply})
        pair = GraphPair(
            key, edits, digest, graph.operators, context.graph.families, judged,
            Candidate(source=cuda, plan=rendered.plan), moves, "", "", None, None,
        )  # fmt: skip
        return self._judged(pair, replace(context, task=judged))

    def _judged(self, pair: GraphPair, context: TaskContext) -> GraphPair | DroppedGraph:
        """The pair with its evaluations and prompts; dropped where one half is not right at every size."""
        task = pair.task

        def dropped(stage: Stage, reason: str) -> DroppedGraph:
            return DroppedGraph(pair.key, stage, reason, pair.digest, pair.edits)

        if self.functions is None:
            self._remember(pair)
            return pair
        try:
            evaluator = open_admitted(self.pool, task)
        except TaskError as error:
            return dropped("task", str(error))
        try:
            function = self.functions.evaluator(task, evaluator.oracle)
            draw = int(content_hash(self.seed, *pair.key), 16)
            c = function.evaluate(c_candidate(task.c_source), seed=draw).evaluation
            if c.verdict is not Verdict.OK or c.uncompared:
                return dropped("c", f"{c.outcome}: {c.reason}")
            cuda = evaluator.evaluate(pair.candidate, seed=draw, profile=False).evaluation
            if cuda.verdict is not Verdict.OK or cuda.uncompared:
                return dropped("cuda", f"{cuda.outcome}: {cuda.reason}")
            request = CoderRequest(brief=context, operator=Operator.SEED, parent=None, finding=None, history=())
            prompt = render_translation(task, context.facts, pair.candidate, str(function.signature))
        except TaskError as error:
            return dropped("task", str(error))
        finally:
            evaluator.close()
            self.pool.done(task)
        self._remember(pair)
        return replace(pair, cuda=cuda, c=c, cuda_prompt=coder_prompt(request).text, c_prompt=prompt.text)

    def _remember(self, pair: GraphPair) -> None:
        self.earlier.add(pair.digest)
        self.texts.add(text_hash(pair.task.c_source))

    def _graph(self, task: Task) -> SizedGraph | TaskError:
        """The traced graph of a task at the sizes that pairs are judged at, or why there is none."""
        key = f"{task.suite}/{task.name}"
        if key not in self._graphs:
            try:
                self._graphs[key] = self._traced(task)
            except TaskError as error:
                self._graphs[key] = error
        return self._graphs[key]

    def _traced(self, task: Task) -> SizedGraph:
        hidden = [size.name for size in task.sizes if size.is_hidden]
        if not hidden:
            raise TaskError("it has no hidden sizes")
        with closing(self.pool.oracle(task)) as oracle:
            facts = oracle.facts(("small", *hidden))
            traced = sized_graph([oracle.trace(size) for size in ("small", *hidden)])
        elements = {
            size.size: sum(spec.numel for spec in size.inputs if isinstance(spec, TensorSpec)) for size in facts.sizes
        }
        # Where few numbers are those of the small size, a generator sees which of them differ between sizes.
        return traced.beginning_with(max(hidden, key=lambda size: (traced.unlike_first(size), elements[size])))

    def _augmented(self, graph: SizedGraph, rng: Random) -> tuple[SizedGraph, tuple[str, ...]] | None:
        for _ in range(_MOST_DRAWS):
            partner = self._graph(rng.choice(self.tasks))
            usable = partner if isinstance(partner, SizedGraph) and may_follow(partner) else None
            drawn = augmented(graph, rng, usable)
            if drawn is not None and drawn[0].digest not in self.earlier:
                return drawn
        return None


def text_hash(c_source: str) -> str:
    """Hash of a C function without its name and comments."""
    text = re.sub(r"/\*.*?\*/", "", c_source, flags=re.DOTALL)
    return content_hash("c", re.sub(r"^void \w+\(", "void (", text, flags=re.MULTILINE))


def unlike_files(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, without those whose file differs from an earlier one's in module constants alone."""
    seen: set[str] = set()
    kept: list[Task] = []
    for task in tasks:
        tree = parse_task_file(task.source, task.name).tree
        numbers = module_constants(tree)
        rest = [
            ast.dump(node)
            for node in tree.body
            if not (
                isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) and t.id in numbers for t in node.targets)
            )
        ]
        key = content_hash("file", rest)
        if key not in seen:
            seen.add(key)
            kept.append(task)
    return kept
