"""The proficiency study of OpenAI Codex: ten suggestions to a bare prompt, judged, and a score for each prompt.

Godoy, Valero-Lara, Teranishi, Balaprakash, Vetter, "Evaluation of OpenAI Codex for HPC Parallel Programming Models
Kernel Generation", arXiv 2306.15121. There people read the suggestions; here each is run. docs/study.md says by which
rules a suggestion counts, and where the paper leaves a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from statistics import mean
from typing import Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from kernelforge.candidate.reply import code_blocks
from kernelforge.errors import CandidateError, KernelForgeError, UnsupportedError, UsageError
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.llm.base import Answerer, Prompt, Question
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.metrics.codebleu import uncommented
from kernelforge.records import Candidate, Evaluation, Message, Verdict, content_hash, first_fault
from kernelforge.records.base import Record
from kernelforge.records.task import MAX_SOURCE_BYTES
from kernelforge.study.entries import c_entry, code_of, cuda_entry, host_program_entry
from kernelforge.study.fortran import fortran_entry, fortran_forms, read_procedure
from kernelforge.study.host_programs import HostProgram, hip_as_cuda, read_host_program
from kernelforge.study.kernels import KERNELS, Form, StudyKernel
from kernelforge.study.kokkos_functions import kokkos_function, kokkos_source
from kernelforge.study.programming_models import (
    ASKABLE,
    MODELS,
    Runner,
    is_of_model,
    missing_tool,
    offload_of,
    plain_code,
    programming_model,
)
from kernelforge.study.python_functions import kernel_text, python_entry, python_function
from kernelforge.study.signatures import (
    Function,
    Underivable,
    device_code,
    entry_function,
    entry_kernel,
    is_cpp,
    without_marks,
)
from kernelforge.study.thrust_functions import marked_function_objects
from kernelforge.study.triton_kernels import triton_entry, triton_kernel
from kernelforge.translation.client import CLanguage
from kernelforge.translation.evaluator import CEvaluators
from kernelforge.translation.launcher import KernelLauncher
from kernelforge.translation.offload import Offload
from kernelforge.utils.closing import Closing

ASSUMED_REPLY: Final = 1000
"""Output tokens of a suggestion when no earlier one tells: a program with its explanation. Not measured."""

WARM_FORMS: Final = 12
"""Forms whose oracles are kept."""

SuggestionVerdict = Literal["right", "wrong", "not judged", "no code", "failed"]
"""``not judged``: no call could be derived, or nothing here runs the programming model; it counts as a wrong code.
``no code``: it counts as no code. ``failed``: the machine failed; the prompt has no score."""

LEVELS: Final = {0.0: "non-knowledge", 0.25: "novice", 0.5: "learner", 0.75: "proficient", 1.0: "expert"}
"""Names of the paper's scores."""


class StudyPrompt(NamedTuple):
    """One prompt of the study: a row of its table."""

    kernel: str
    model: str
    hint: str
    """The keyword behind the programming model; empty for none."""

    @property
    def text(self) -> str:
        """``<kernel> <programming model> <hint>``, as the paper asks."""
        return " ".join(filter(None, (KERNELS[self.kernel].prompt, MODELS[self.model].prompt, self.hint)))

    @property
    def task(self) -> str:
        """Name in transcripts and exchange folders."""
        return "-".join(filter(None, (self.kernel, self.model, self.hint)))


class Suggestion(Record):
    """One suggestion, with its verdict."""

    kernel: str
    model: str
    """The programming model that was asked for."""
    hint: str
    position: int = Field(ge=0)
    """Among the suggestions to the prompt."""
    coder: str
    messages: tuple[Message, ...]
    """Prompt and reply."""
    code: str
    """Empty where the reply holds none."""
    used_model: str | None
    """The programming model that the code uses."""
    verdict: SuggestionVerdict
    form: str = ""
    """The formula that it computes, where it is right."""
    reason: str = ""
    """Why it is not right."""
    evaluation: Verdict | None = None
    """Verdict of the run that decided; None where nothing ran."""
    device: str = ""
    """Where it ran."""

    @property
    def prompt(self) -> StudyPrompt:
        return StudyPrompt(self.kernel, self.model, self.hint)


class PromptScore(Record):
    """The score of one prompt. Codes that differ in comments and spacing alone count once."""

    kernel: str
    model: str
    hint: str
    prompt: str
    suggestions: int
    right: int
    """Different right codes of the model asked for."""
    other: int
    """Different right codes of other models."""
    wrong: int
    """Different codes that are wrong, or could not be judged."""
    not_judged: int
    """Of these, those that could not be judged."""
    no_code: int
    """Replies without code."""
    score: float | None
    """None where a suggestion is missing, or the machine failed to judge one."""
    level: str


class StudyScores(Record):
    """The table of a study."""

    coder: str
    device: str
    requested: int
    """Suggestions to each prompt, when the study is complete."""
    missing: int
    """Those that are not there yet, of all prompts."""
    prompts: tuple[PromptScore, ...]
    by_kernel: dict[str, float | None]
    """Mean over the prompts that have a score."""
    by_model: dict[str, float | None]
    """The same by programming model and hint, as ``cuda`` and ``cuda function``."""


def study_prompts(kernels: Sequence[str], models: Sequence[str], hints: Sequence[str]) -> list[StudyPrompt]:
    """Every prompt of a study, by model, hint and kernel.

    Raises:
        UsageError: a kernel or model has another name, or the model cannot be judged here.
    """
    for name in kernels:
        if name not in KERNELS:
            raise UsageError(f"the study has no kernel {name!r}; choose of {', '.join(KERNELS)}")
    for name in models:
        if name not in MODELS:
            raise UsageError(f"there is no programming model {name!r}; choose of {', '.join(ASKABLE)}")
        if name not in ASKABLE:
            raise UsageError(
                f"{MODELS[name].prompt} cannot be asked for: {MODELS[name].refusal}; choose of {', '.join(ASKABLE)}"
            )
    for hint in hints:
        if hint and not hint.replace("_", "").isalnum():
            raise UsageError(f"a hint is one keyword, such as function; not {hint!r}")
    return [
        StudyPrompt(kernel, model, hint)
        for model in dict.fromkeys(models)
        for hint in dict.fromkeys(hints)
        for kernel in dict.fromkeys(kernels)
    ]


def require_tools(models: Sequence[str]) -> None:
    """Refuse models that need a tool which this machine lacks.

    Raises:
        UsageError: there is one.
    """
    for name in models:
        if lack := missing_tool(MODELS[name].runner):
            raise UsageError(f"{MODELS[name].prompt} cannot be judged here: {lack}")


class Judgement(NamedTuple):
    """Verdict of one code."""

    used_model: str | None
    verdict: SuggestionVerdict
    form: str = ""
    reason: str = ""
    evaluation: Verdict | None = None
    device: str = ""


class StudyJudge(Closing):
    """Judges suggestions: CUDA on a device; C, C++, Fortran and Python in jails. Close it when done.

    Args:
        device: as of an evaluation.
        seed: from which all inputs are drawn; no suggestion sees it.
        allow_unconfined: go on where no jail works.
        tell: receives messages on the device.

    Raises:
        SandboxError: no jail works here, or there is no C compiler.
        DeviceError: there is no such device.
    """

    def __init__(
        self, device: str, *, seed: int, allow_unconfined: bool = False, tell: Callable[[str], None] | None = None
    ) -> None:
        self._seed = seed
        with ExitStack() as stack:
            self._pool = stack.enter_context(
                EvaluatorPool(device, allow_unconfined=allow_unconfined, tell=tell, warm_tasks=WARM_FORMS)
            )
            self._hosts = stack.enter_context(CEvaluators(allow_unconfined=allow_unconfined, warm_tasks=WARM_FORMS))
            self._stack = stack.pop_all()
        self._judged: dict[tuple[str, str, str], Judgement] = {}

    def judge(self, kernel: str, code: str, label: str) -> Judgement:
        """Judge the code of a suggestion, in any programming model.

        Args:
            kernel: the study's name of the kernel.
            code: of the suggestion.
            label: language of its fence, or empty.

        Raises:
            TaskError: a reference does not run.
            DeviceError: no device is left.
        """
        key = (kernel, code, label)
        if key not in self._judged:
            self._judged[key] = self._judge(KERNELS[kernel], code, label)
        return self._judged[key]

    def close(self) -> None:
        """End every helper process."""
        self._stack.close()

    def _judge(self, kernel: StudyKernel, code: str, label: str) -> Judgement:
        if len(code.encode(errors="replace")) > MAX_SOURCE_BYTES:
            return Judgement(None, "not judged", reason=f"the code is larger than {MAX_SOURCE_BYTES:,} bytes")
        used = programming_model(code)
        if used is None:
            return Judgement(None, "no code", reason="the text is no code of a programming model")
        runner = MODELS[used].runner
        if runner is None:
            return Judgement(used, "not judged", reason=f"{MODELS[used].prompt}: {MODELS[used].refusal}")
        try:
            if lack := missing_tool(runner):
                raise UnsupportedError(lack)
            return _judgement(used, self._evaluations(runner, kernel, code, label, offload_of(code, used)))
        except Underivable as error:
            return Judgement(used, "not judged", reason=f"no call could be derived: {error}")
        except UnsupportedError as error:
            return Judgement(used, "not judged", reason=f"it cannot be run here: {error}")
        except ValidationError as error:
            return Judgement(used, "not judged", reason=f"it is no candidate: {first_fault(error)}")
        except RecursionError:
            return Judgement(used, "not judged", reason="it is nested too deeply to be read")

    def _evaluations(
        self, runner: Runner, kernel: StudyKernel, code: str, label: str, offload: Offload | None
    ) -> Iterator[tuple[str, Evaluation]]:
        """The formula and the evaluation of each form, until the caller has enough."""
        match runner:
            case "cuda":
                return self._on_device(kernel, hip_as_cuda(code))
            case "triton":
                return self._in_triton(kernel, code)
            case "kernel text":
                return self._on_device(kernel, kernel_text(code))
            case "python":
                return self._in_python(kernel, code)
            case "fortran":
                return self._in_fortran(kernel, code, offload)
            case "c":
                function = entry_function(code, kernel.names)
                return self._in_jail(kernel, code, function, cpp=is_cpp(code, label), offload=offload)
            case "thrust":
                function, source = entry_function(without_marks(code), kernel.names), marked_function_objects(code)
                return self._in_jail(kernel, source, function, cpp=True, offload=offload)
            case "kokkos":
                source = kokkos_source(code)
                return self._in_jail(kernel, source, kokkos_function(source, kernel.names), cpp=True, offload=offload)

    def _on_device(self, kernel: StudyKernel, code: str) -> Iterator[tuple[str, Evaluation]]:
        text, unit = device_code(code)
        try:
            program = read_host_program(code, unit, kernel.names)
            forms = [] if program is None else kernel.forms(program.function)
        except Underivable:
            if len(unit.kernels) != 1:
                raise
            program = None  # its kernel is judged alone
        if program is not None:
            yield from self._with_host(program, forms, uncommented(text))
            return
        function = entry_kernel(unit, kernel.names)
        for form in kernel.forms(function):
            candidate = cuda_entry(uncommented(text), function, form)
            with self._pool.evaluators.using(form.task) as evaluator:
                seed = self._seed_of(form, candidate)
                yield form.text, evaluator.evaluate(candidate, seed=seed, profile=False).evaluation

    def _in_triton(self, kernel: StudyKernel, code: str) -> Iterator[tuple[str, Evaluation]]:
        read = triton_kernel(code, kernel.names, kernel.name)
        for form in kernel.forms(read.function):
            candidate = triton_entry(read, form)
            with self._pool.evaluators.using(form.task) as evaluator:
                seed = self._seed_of(form, candidate)
                yield form.text, evaluator.evaluate(candidate, seed=seed, profile=False).evaluation

    def _with_host(self, program: HostProgram, forms: Sequence[Form], device: str) -> Iterator[tuple[str, Evaluation]]:
        """Run the host's part in the jail of C functions, and its kernels on the device."""
        pool = self._pool
        with KernelLauncher(pool.compiler, pool.device, pool.fingerprint, device, program.kernels) as launcher:
            for form in forms:
                candidate = host_program_entry(program, form)
                with pool.hold_gpu(pool.device, form.task):
                    result = self._hosts.evaluate(
                        form.task, candidate, seed=self._seed_of(form, candidate), language="cuda", launcher=launcher
                    )
                yield form.text, result.evaluation

    def _in_jail(
        self, kernel: StudyKernel, code: str, function: Function, *, cpp: bool, offload: Offload | None
    ) -> Iterator[tuple[str, Evaluation]]:
        language: CLanguage = "cpp" if cpp else "c"
        for form in kernel.forms(function):
            candidate = c_entry(code, function, form, cpp=cpp, offload=offload)
            seed = self._seed_of(form, candidate)
            result = self._hosts.evaluate(form.task, candidate, seed=seed, language=language, offload=offload)
            yield form.text, result.evaluation

    def _in_fortran(self, kernel: StudyKernel, code: str, offload: Offload | None) -> Iterator[tuple[str, Evaluation]]:
        procedure = read_procedure(code, kernel.names)
        for form in fortran_forms(procedure, kernel.forms(procedure.function)):
            candidate = fortran_entry(procedure, form)
            seed = self._seed_of(form, candidate)
            result = self._hosts.evaluate(form.task, candidate, seed=seed, language="fortran", offload=offload)
            yield form.text, result.evaluation

    def _in_python(self, kernel: StudyKernel, code: str) -> Iterator[tuple[str, Evaluation]]:
        call, forms = python_function(code, kernel)
        for form in forms:
            candidate = python_entry(code, call, form)
            seed = self._seed_of(form, candidate)
            yield form.text, self._hosts.evaluate(form.task, candidate, seed=seed, language="python").evaluation

    def _seed_of(self, form: Form, candidate: Candidate) -> int:
        return int(content_hash(self._seed, form.task.digest, candidate.hash), 16)


def _judgement(used: str, evaluations: Iterator[tuple[str, Evaluation]]) -> Judgement:
    """The first right form; else the verdict of the first form."""
    first: Judgement | None = None
    for form, evaluation in evaluations:
        device, verdict = evaluation.fingerprint.device, evaluation.verdict
        if verdict is Verdict.OK:
            return Judgement(used, "right", form, "", verdict, device)
        if verdict is Verdict.INFRA:
            return Judgement(used, "failed", "", evaluation.reason, verdict, device)
        first = first or Judgement(used, "wrong", "", f"as {form}: {evaluation.reason}", verdict, device)
        if verdict is not Verdict.WRONG and verdict is not Verdict.CRASH:
            break  # it does not depend on the formula
    assert first is not None  # every kernel has a form
    return first


def suggest(
    prompts: Sequence[StudyPrompt],
    answerer: Answerer,
    judge: StudyJudge,
    *,
    suggestions: int,
    earlier: Sequence[Suggestion] = (),
    at_once: int = 1,
) -> Iterator[Suggestion]:
    """Ask for suggestions and judge them; yields each after its verdict.

    Args:
        prompts: of the study.
        answerer: writes.
        judge: of this study.
        suggestions: to each prompt.
        earlier: suggestions of a study that was stopped; they are not asked for again, and those for which the machine
            failed are judged again.
        at_once: questions in flight. Where one fails, the replies to the others are judged first.

    Raises:
        ProviderError: no reply can be had.
        BudgetExhausted: a budget of the answerer's meter is spent.
        TaskError: a reference does not run.
        DeviceError: no device is left.
    """
    replies: dict[tuple[StudyPrompt, int], tuple[Message, ...]] = {}
    done: set[tuple[StudyPrompt, int]] = set()
    for row in earlier:
        replies[row.prompt, row.position] = row.messages
        if row.verdict != "failed":
            done.add((row.prompt, row.position))
    with ThreadPoolExecutor(at_once, "suggestions") as threads:
        for prompt in prompts:
            missing = [position for position in range(suggestions) if (prompt, position) not in done]
            pending = {
                position: threads.submit(answerer.ask, _question(prompt, position))
                for position in missing
                if (prompt, position) not in replies
            }
            failure: BaseException | None = None
            for position in missing:
                messages = replies.get((prompt, position))
                if messages is None:
                    try:
                        messages = pending[position].result().messages
                    except (KernelForgeError, CancelledError) as error:
                        failure = failure or error
                        for other in pending.values():
                            other.cancel()
                        continue
                yield judged_suggestion(prompt, position, answerer.name, messages, judge)
            if failure is not None:
                raise failure


def _question(prompt: StudyPrompt, position: int) -> Question:
    return Question("coder", prompt.task, Prompt(prompt.text), _take, sample=position)


def judged_suggestion(
    prompt: StudyPrompt, position: int, coder: str, messages: tuple[Message, ...], judge: StudyJudge
) -> Suggestion:
    """A suggestion with its verdict."""
    reply = messages[-1].content
    try:
        block = code_of(code_blocks(reply), reply)
        judgement = (
            Judgement(None, "no code", reason="the reply holds no code")
            if block is None
            else judge.judge(prompt.kernel, block.text, block.label)
        )
        if block is not None and judgement.used_model and is_of_model(block.text, judgement.used_model, prompt.model):
            judgement = judgement._replace(used_model=prompt.model)
    except CandidateError as error:
        block, judgement = None, Judgement(None, "no code", reason=str(error))
    return Suggestion(
        kernel=prompt.kernel,
        model=prompt.model,
        hint=prompt.hint,
        position=position,
        coder=coder,
        messages=messages,
        code="" if block is None else block.text,
        **judgement._asdict(),
    )


def _take(reply: str) -> None:
    """Every reply counts: a suggestion is never asked for again because of what it holds."""


def proficiency(model: str, suggestions: Sequence[Suggestion]) -> tuple[float | None, Mapping[str, int]]:
    """The score of one prompt, and the different codes that decide it.

    The rules, in order, over codes that differ in more than comments and spacing; a code that could not be judged is
    wrong, and a reply without code is no code:

    - 0, non-knowledge: no right code of the model asked for;
    - 0.25, novice: one or more, and wrong codes;
    - 0.5, learner: one or more, none wrong, and right codes of other models;
    - 1, expert: right, of the model asked for, and the only code;
    - 0.75, proficient: several, all right and of the model asked for.

    Args:
        model: the programming model asked for.
        suggestions: to the prompt.

    Returns:
        The score, None where the machine failed to judge one; and ``right``, ``other`` and ``wrong`` codes.
    """
    kinds: dict[str, str] = {}
    for item in suggestions:
        if item.verdict == "no code" or item.verdict == "failed":
            continue
        code = _plain(item)
        kind = "wrong" if item.verdict != "right" else "right" if item.used_model == model else "other"
        kinds.setdefault(code, kind)
    counts = {kind: sum(value == kind for value in kinds.values()) for kind in ("right", "other", "wrong")}
    if any(item.verdict == "failed" for item in suggestions) or not suggestions:
        return None, counts
    if not counts["right"]:
        return 0.0, counts
    if counts["wrong"]:
        return 0.25, counts
    if counts["other"]:
        return 0.5, counts
    return (1.0 if counts["right"] == 1 else 0.75), counts


def _plain(item: Suggestion) -> str:
    return plain_code(item.code, item.used_model)


def study_scores(prompts: Sequence[StudyPrompt], suggestions: Sequence[Suggestion], requested: int) -> StudyScores:
    """The table of a study.

    Args:
        prompts: rows of the table; one with fewer suggestions than requested has no score.
        suggestions: of all of them.
        requested: suggestions to each prompt.

    Raises:
        UsageError: there is no suggestion.
    """
    if not suggestions:
        raise UsageError("there is no suggestion, so there is no score")
    rows = []
    for prompt in prompts:
        own = [item for item in suggestions if item.prompt == prompt]
        score, counts = proficiency(prompt.model, own)
        if len(own) < requested:
            score = None
        rows.append(
            PromptScore(
                kernel=prompt.kernel,
                model=prompt.model,
                hint=prompt.hint,
                prompt=prompt.text,
                suggestions=len(own),
                not_judged=len({_plain(item) for item in own if item.verdict == "not judged"}),
                no_code=sum(item.verdict == "no code" for item in own),
                score=score,
                level="" if score is None else LEVELS[score],
                **counts,
            )
        )
    devices = dict.fromkeys(item.device for item in suggestions if item.device)
    return StudyScores(
        coder=suggestions[0].coder,
        device=", ".join(devices),
        requested=requested,
        missing=sum(max(0, requested - row.suggestions) for row in rows),
        prompts=tuple(rows),
        by_kernel={
            name: _mean(row.score for row in rows if row.kernel == name)
            for name in dict.fromkeys(r.kernel for r in rows)
        },
        by_model={name: _mean(row.score for row in rows if column(row) == name) for name in map(column, rows)},
    )


def column(row: PromptScore) -> str:
    """Head of a prompt's column in the table: programming model and hint."""
    return " ".join(filter(None, (row.model, row.hint)))


class StudyEstimate(NamedTuple):
    """Use of the calls of a study."""

    calls: int
    input_tokens: int
    output_tokens: int
    basis: str
    """Output tokens of a reply, and whether they were seen or are assumed."""


def estimate_study(
    prompts: Sequence[StudyPrompt], suggestions: int, earlier: Sequence[Suggestion] = ()
) -> StudyEstimate:
    """Estimate the calls that are left to do.

    Args:
        prompts: of the study.
        suggestions: to each.
        earlier: suggestions that are there already.
    """
    earlier_keys = {(row.prompt, row.position) for row in earlier}
    remaining = [
        prompt for prompt in prompts for position in range(suggestions) if (prompt, position) not in earlier_keys
    ]
    messages = [message for row in earlier for message in row.messages if message.usage is not None]
    seen = [m.usage.output_tokens for m in messages if m.usage is not None and m.usage.output_tokens is not None]
    each = mean(seen) if seen else ASSUMED_REPLY
    return StudyEstimate(
        len(remaining),
        sum(estimate_tokens(prompt.text) for prompt in remaining),
        round(each * len(remaining)),
        f"{each:,.0f} seen" if seen else f"{ASSUMED_REPLY:,} assumed",
    )


def _mean(scores: Iterator[float | None]) -> float | None:
    present = [score for score in scores if score is not None]
    return mean(present) if present else None
