"""``kernelforge data export``: what it writes of each source, and that trainers read it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelforge.cli.data import Kind, Published, Rule
from kernelforge.cli.main import app
from kernelforge.datasets.curation import RULES
from kernelforge.datasets.published_rows import FORMATS
from kernelforge.datasets.training import KINDS
from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Message, Usage, Verdict
from kernelforge.store import Store
from kernelforge.tasks import load_suite, load_task
from tests.adapters.character_tokenizer import LETTERS, character_tokenizer
from tests.server.service_tools import ended, serving
from tests.server.sessions.test_sessions_http import serving as serving_sessions
from tests.support.inprocess_engine import completion, request
from tests.support.recorded_run import TASKS, golden_attempts, make_facts, make_run, make_task


def export(*words: str) -> str:
    done = CliRunner().invoke(app, ["data", "export", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stderr


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_another_source(attempt: Attempt, number: int) -> Attempt:
    """The attempt with a candidate that repeats no other."""
    if attempt.candidate is None:
        return attempt
    text = " ".join(f"x[{number}] *= {number}.{index}f;" for index in range(9))
    candidate = attempt.candidate.model_copy(update={"source": f"__global__ void k(float* x) {{ {text} }}\n"})
    build = None if attempt.evaluation.build is None else attempt.evaluation.build.model_copy(update={"ptx_hash": None})
    evaluation = attempt.evaluation.model_copy(update={"candidate": candidate.hash, "build": build})
    return attempt.model_copy(update={"candidate": candidate, "evaluation": evaluation})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run whose attempts all have words, and a prompt in common."""
    store = Store.open(tmp_path / "kernelforge.db")
    run = make_run()
    store.start_run(run)
    for name in TASKS:
        store.put_task(run.id, make_task(name), make_facts(make_task(name)))
    for number, attempt in enumerate(golden_attempts(run)):
        words = (
            Message(agent="coder", role="prompt", provider="openai:m", content=f"Write {attempt.task}."),
            Message(agent="coder", role="reply", provider="openai:m", content=f"reply {number} of {attempt.task}"),
        )
        store.add_attempt(with_another_source(attempt, number).model_copy(update={"messages": words}))
    store.close()
    return tmp_path


@pytest.mark.slow
def test_each_kind_of_a_run_is_written_with_its_card(results: Path) -> None:
    counts = {}
    for kind in ("sft", "dpo", "kto", "trajectories"):
        out = results / kind
        assert "rows in train.jsonl" in export("--as", kind, "-o", str(out), "--results", str(results), "--near", "1")
        counts[kind] = len(lines(out / "train.jsonl"))
        card = (out / "README.md").read_text()
        assert card.startswith("---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n")
        assert KINDS[kind] in card
        assert "| written by | openai:m |" in card
        assert "Licence: not stated." in card
    assert counts["sft"] < counts["kto"]
    assert counts["dpo"] > 0


@pytest.mark.slow
def test_equal_programs_count_once_unless_all_are_asked_for(results: Path) -> None:
    with Store.open(results / "kernelforge.db") as store:
        run = store.run("latest")
        first = next(a for a in store.attempts(run.id, "softmax") if a.evaluation.verdict is Verdict.OK)
        last = with_another_source(first, 99)
        evaluation = last.evaluation.model_copy(update={"equals": first.evaluation.key})
        words = (first.messages[0].model_copy(update={"content": "Make it faster."}), first.messages[1])
        number = len(store.attempts(run.id, "softmax"))
        changes = {"id": f"{run.id}/softmax/{number:02d}", "number": number, "messages": words, "accepted": False}
        store.add_attempt(last.model_copy(update={**changes, "evaluation": evaluation}))
    counts = {}
    for programs in ("once", "all"):
        out = results / programs
        export("--as", "sft", "-o", str(out), "--results", str(results), "--near", "1", "--programs", programs)
        counts[programs] = len(lines(out / "train.jsonl"))
    assert counts["all"] == counts["once"] + 1
    cards = [(results / programs / "README.md").read_text() for programs in counts]
    assert ["without those that share the evaluation" in card for card in cards] == [True, False]


@pytest.mark.slow
def test_renamed_copies_are_repeats_by_bleu(results: Path) -> None:
    counts = {}
    for likeness in ("shingles", "bleu"):
        out = results / likeness
        export("--as", "sft", "-o", str(out), "--results", str(results), "--likeness", likeness)
        counts[likeness] = len(lines(out / "train.jsonl"))
        assert f"without repeats, from 90% alike on by {likeness}" in (out / "README.md").read_text()
    assert counts["bleu"] <= counts["shingles"]


def test_the_command_names_every_kind() -> None:
    assert [kind.value for kind in Kind] == list(KINDS)
    assert [rule.value for rule in Rule] == list(RULES)


def test_without_reasoning_there_is_nothing_to_curate(results: Path) -> None:
    done = CliRunner().invoke(app, ["data", "curate", "--results", str(results)])
    assert isinstance(done.exception, UsageError)
    assert "no trace to choose from" in str(done.exception)


@pytest.mark.slow
def test_what_cannot_be_is_refused_and_nothing_is_written(results: Path) -> None:
    words = ["--results", str(results)]
    with pytest.raises(UsageError, match="nothing to write as grpo"):
        export("--as", "grpo", "-o", str(results / "a"), *words, "--min-reward", "99")
    with pytest.raises(UsageError, match=r"nothing to write as translator: .*0 of tasks that show sequential code"):
        export("--as", "translator", "-o", str(results / "a"), *words)
    with pytest.raises(UsageError, match=r"nothing to write as tester: .*0 whose Tester caught a wrong kernel"):
        export("--as", "tester", "-o", str(results / "a"), *words)
    with pytest.raises(UsageError, match="a Tester works in runs alone"):
        export("--as", "tester", "-o", str(results / "a"), "--from", "jobs", *words)
    with pytest.raises(UsageError, match="no task 'none' there; there is: "):
        export("--as", "sft", "-o", str(results / "a"), *words, "--task", "none")
    with pytest.raises(UsageError, match="exists: name a folder that does not"):
        export("--as", "sft", "-o", str(results), *words)
    with pytest.raises(UsageError, match="no reward policy 'x/1'"):
        export("--as", "sft", "-o", str(results / "a"), *words, "--policy", "x/1")
    with pytest.raises(UsageError, match="no reward server has kept jobs"):
        export("--as", "sft", "-o", str(results / "a"), *words, "--from", "jobs")
    assert not (results / "a").exists()


@pytest.mark.slow
def test_parquet_and_parts_hold_what_the_lines_hold(results: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["--as", "kto", "--results", str(results), "--validation", "0.5"]
    export(*words, "-o", str(results / "lines"))
    export(*words, "-o", str(results / "table"), "--format", "parquet")
    for path in (results / "lines").glob("*.jsonl"):
        assert parquet.read_table(results / "table" / f"{path.stem}.parquet").to_pylist() == lines(path)


@pytest.mark.slow
def test_jobs_with_a_prompt_are_grouped_by_their_id(tmp_path: Path) -> None:
    async def submit() -> None:
        async with serving(tmp_path) as service:
            fields = {"prompt": "Write a gelu.", "group_id": "step-1", "run_id": "grpo"}
            await ended(service, request("1", **fields), request("2 WRONG", **fields), request("3"))

    asyncio.run(submit())
    export("grpo", "--from", "jobs", "--as", "grpo", "-o", str(tmp_path / "out"), "--results", str(tmp_path))
    [row] = lines(tmp_path / "out" / "train.jsonl")
    assert (row["prompt"], row["rewards"]) == ([{"role": "user", "content": "Write a gelu."}], [0.3, 0.0])
    assert row["completions"] == [completion("1"), completion("2 WRONG")]
    assert (row["group"], row["source"], row["licence"]) == ("grpo/step-1", "job", "Apache-2.0")
    with sqlite3.connect(tmp_path / "server.db") as database:
        [(digest, text)] = database.execute("SELECT digest, task FROM tasks").fetchall()
        copied = json.loads(text) | {"name": "copied", "title": "Copied"}
    (tmp_path / "mine").mkdir()  # a task of another digest whose text is alike
    (tmp_path / "mine" / "copied.py").write_text(copied["source"])
    (tmp_path / "mine" / "suite.toml").write_text('title = "Mine"\n[[task]]\nname = "copied"\n')
    assert load_suite(tmp_path / "mine").task("copied").digest != digest
    with pytest.raises(UsageError, match=r"nothing to write as grpo: .*0 unlike any task of"):
        export(
            "grpo", "--from", "jobs", "--as", "grpo", "-o", str(tmp_path / "none"), "--results", str(tmp_path),
            "--exclude", str(tmp_path / "mine"),
        )  # fmt: skip


@pytest.mark.slow
def test_traces_are_curated_and_each_rule_is_compared(tmp_path: Path) -> None:
    with Store.open(tmp_path / "kernelforge.db") as store:
        run = make_run()
        store.start_run(run)
        tasks = {"softmax": load_task("core/softmax"), **{name: make_task(name) for name in TASKS if name != "softmax"}}
        for task in tasks.values():
            store.put_task(run.id, task)
        for number, attempt in enumerate(golden_attempts(run)):
            usage = Usage(model="m", reasoning_tokens=1_000 * (number + 1), seconds=1.0)
            words = (
                Message(agent="coder", role="prompt", provider="m", content="Write it."),
                Message(agent="coder", role="reply", provider="m", content="a kernel", reasoning="hm", usage=usage),
            )
            store.add_attempt(with_another_source(attempt, number).model_copy(update={"messages": words}))
        count = len(store.attempts(run.id, "softmax"))
        lengths = [usage and usage.reasoning_tokens for _, usage in store.reasoning(tasks["softmax"].digest)]
        assert lengths == [1_000 * (number + 1) for number in range(count)]
    text = CliRunner().invoke(app, ["tasks", "show", "softmax", "--no-facts", "--results", str(tmp_path)]).stdout
    average = 500 * (count + 1)
    assert f"difficulty: easy: {average:,} tokens of reasoning on average of {count} replies\n" in text
    words = ["data", "curate", "--results", str(tmp_path)]
    table = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [row["rule"] for row in table] == [rule.value for rule in Rule]
    assert "What each rule chooses from" in CliRunner().invoke(app, words).stdout
    done = CliRunner().invoke(app, [*words, "--rule", "shortest", "-o", str(tmp_path / "out")])
    assert "rule" in done.stdout
    made = lines(tmp_path / "out" / "train.jsonl")
    assert len(made) == next(row["traces"] for row in table if row["rule"] == "shortest") > 0
    assert {row["chosen_as"] for row in made} == {"shortest"}
    assert (
        "chosen by the rule shortest: the shortest correct trace of each task"
        in (tmp_path / "out" / "README.md").read_text()
    )


@pytest.mark.slow
def test_published_rows_are_written_with_their_card(tmp_path: Path) -> None:
    rows = [
        {
            "PyTorch_Code_Module": load_task("core/softmax").source,
            "CUDA_Code": "__global__ void k() {}",
            "Correct": True,
        },
        {"PyTorch_Code_Module": "def forward(x): return x", "CUDA_Code": "__global__ void k() {}", "Correct": False},
        {"PyTorch_Code_Module": "def forward(x): return x", "CUDA_Code": None, "Correct": True},
    ]
    (tmp_path / "level_1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["data", "import", str(tmp_path / "level_1.jsonl"), "--format", "ai-cuda-engineer"]
    done = CliRunner().invoke(app, [*words, "--as", "kto", "--exclude", "core", "-o", str(tmp_path / "out")])
    assert "not read: level_1.jsonl, row 2: no text in column 'CUDA_Code'" in done.stderr
    [row] = lines(tmp_path / "out" / "train.jsonl")
    assert (row["label"], row["published_correct"], row["verdict"]) == (False, False, None)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| licences of the rows | CC-BY-4.0 |" in card
    assert "- 1 unlike any task of core" in card
    assert "Nothing was evaluated here" in card
    refused = CliRunner().invoke(app, [*words, "--column", "kernel=a", "-o", str(tmp_path / "b")])
    assert "names columns of ConCuR" in str(refused.exception)
    assert [published.value for published in Published] == list(FORMATS)


@pytest.mark.slow
def test_a_job_keeps_the_reasoning_of_its_completion(tmp_path: Path) -> None:
    async def submit() -> None:
        async with serving(tmp_path) as service:
            thought = f"It is bound by memory.\n</think>\n\n{completion('1')}"
            job = request("1", prompt="Write a gelu.")
            await ended(service, job.model_copy(update={"completion": thought}))

    asyncio.run(submit())
    words = ["--from", "jobs", "--as", "sft", "--results", str(tmp_path), "--reasoning", "think"]
    export(*words, "-o", str(tmp_path / "out"))
    [row] = lines(tmp_path / "out" / "train.jsonl")
    assert (row["reasoning"], row["reasoning_tokens"]) == ("It is bound by memory.", 6)
    expected = f"<think>\nIt is bound by memory.\n</think>\n\n{completion('1')}"
    assert row["messages"][-1] == {"role": "assistant", "content": expected}
    table = CliRunner().invoke(app, ["data", "curate", "--from", "jobs", "--results", str(tmp_path), "--json"])
    assert [row["traces"] for row in json.loads(table.stdout)] == [1] * len(Rule)
    with pytest.raises(UsageError, match="has no reasoning"):
        export("--as", "critique", "--reasoning", "think", "-o", str(tmp_path / "b"), "--results", str(tmp_path))


@pytest.mark.slow
def test_sessions_are_dialogues_with_returns(tmp_path: Path) -> None:
    async def talk() -> None:
        async with serving_sessions(tmp_path) as server:
            session = (await server.open(turns=3, run_id="kevin"))["id"]
            for text, version in (("WRONG", 1), ("4194304", 2), ("2097152", 2)):
                await server.turn(session, completion(text), policy_version=version)

    asyncio.run(talk())
    out = tmp_path / "out"
    export("kevin", "--from", "sessions", "--as", "trajectories", "-o", str(out), "--results", str(tmp_path))
    [row] = lines(out / "train.jsonl")
    assert [word["role"] for word in row["messages"]] == ["system", "user", "assistant"] + ["user", "assistant"] * 2
    assert row["policy_versions"] == [1, 2, 2]
    assert row["returns"] == pytest.approx([0.4 * (0.3 + 0.4 * 0.3), 0.3 + 0.4 * 0.3, 0.3])
    export("--from", "sessions", "--as", "critique", "-o", str(tmp_path / "critique"), "--results", str(tmp_path))
    assert [row["helped"] for row in lines(tmp_path / "critique" / "train.jsonl")] == [True, True]


def tiny(folder: Path) -> dict[str, Any]:
    """A random model of a few thousand parameters, and the arguments that every trainer needs."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=len(LETTERS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    return {"model": transformers.LlamaForCausalLM(config), "processing_class": tokenizer}


def settings(kind: Any, folder: Path, **changes: Any) -> Any:
    return kind(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=2, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, max_length=64, **changes,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl_trains_on_what_is_written(results: Path, kind: str) -> None:
    datasets, trl = map(pytest.importorskip, ("datasets", "trl"))
    export("--as", kind, "-o", str(results / kind), "--results", str(results), "--near", "1")
    table = datasets.load_dataset(str(results / kind), cache_dir=str(results / "cache"))["train"]
    assert len(table) == len(lines(results / kind / "train.jsonl"))
    if kind == "sft":
        trainer = trl.SFTTrainer(args=settings(trl.SFTConfig, results / "out"), train_dataset=table, **tiny(results))
    else:
        reference = tiny(results)["model"]
        arguments = settings(trl.DPOConfig, results / "out")
        trainer = trl.DPOTrainer(ref_model=reference, args=arguments, train_dataset=table, **tiny(results))
    assert trainer.train().training_loss > 0
