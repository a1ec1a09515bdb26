"""Train over several turns as Kevin does: each turn is a sample, whose return adds later turns discounted by 0.4."""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
import toy
from transformers import PreTrainedModel

from kernelforge.adapters.common import Scorer, forget_blocking
from kernelforge.client.models import Turn
from kernelforge.rewards.advantages import KEVIN_DISCOUNT, discounted_returns, leave_one_out

TRAJECTORIES = 16
TURNS = 3
TOKENIZER = toy.tokenizer()
END = TOKENIZER.eos_token_id


class Sampled(NamedTuple):
    """One turn of all trajectories, in tokens: a row for each."""

    dialogue: torch.Tensor
    reply: torch.Tensor


def reply_to(model: PreTrainedModel, dialogue: torch.Tensor) -> Sampled:
    """Sample a reply of as many tokens as any has: its end is repeated."""
    tokens = dialogue
    with torch.no_grad():
        for _ in range(toy.LONGEST):
            following = torch.multinomial(model(tokens).logits[:, -1].softmax(-1), 1)
            ended = tokens[:, -1:] == END if tokens.shape[1] > dialogue.shape[1] else torch.zeros_like(following).bool()
            tokens = torch.cat([tokens, following.masked_fill(ended, END)], 1)
    return Sampled(dialogue, tokens[:, dialogue.shape[1] :])


def log_probability(model: PreTrainedModel, turn: Sampled) -> torch.Tensor:
    """Of each reply, up to its first end."""
    logits = model(torch.cat(turn, 1)).logits[:, turn.dialogue.shape[1] - 1 : -1]
    each = logits.log_softmax(-1).gather(2, turn.reply[:, :, None])[:, :, 0]
    after_the_end = (turn.reply == END).cumsum(1) - (turn.reply == END).long() > 0
    return each.masked_fill(after_the_end, 0.0).sum(1)


def trajectories(model: PreTrainedModel, scorer: Scorer) -> tuple[list[Sampled], list[list[Turn]]]:
    """A conversation for each row of the batch: the replies of each turn, and what the server said of each."""
    sessions = [scorer.session_blocking(toy.TASK, TURNS) for _ in range(TRAJECTORIES)]
    dialogue = torch.tensor(TOKENIZER([toy.PROMPT] * TRAJECTORIES)["input_ids"])
    sampled, judged = [], []
    for _ in range(TURNS):
        sampled.append(reply_to(model, dialogue))
        texts = TOKENIZER.batch_decode(sampled[-1].reply, skip_special_tokens=True)
        with ThreadPoolExecutor(TRAJECTORIES) as threads:
            judged.append(list(threads.map(scorer.turn_blocking, sessions, texts)))
        # A language model is given all of turn.observation; the toy knows only the words for verdicts.
        verdicts = TOKENIZER([turn.result.verdict or "<unk>" for turn in judged[-1]])["input_ids"]
        dialogue = torch.cat([dialogue, sampled[-1].reply, torch.tensor(verdicts)], 1)
    for session in sessions:
        forget_blocking(session)
    return sampled, judged


def advantages(judged: list[list[Turn]]) -> torch.Tensor:
    """Of each turn of each trajectory: its discounted return less the mean of the others' at that turn."""
    rewards_of = zip(*([turn.result.reward for turn in turns] for turns in judged), strict=True)
    returns = zip(*(discounted_returns(rewards, KEVIN_DISCOUNT) for rewards in rewards_of), strict=True)
    return torch.tensor([[value or 0.0 for value in leave_one_out(of_turn)] for of_turn in returns])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="kernelforge/2", help="reward policy of each turn")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = toy.model(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with tempfile.TemporaryDirectory() as results, toy.reward_server(Path(results)):
        scorer = Scorer(policy=options.policy, run_id="kevin")
        for step in range(1, options.steps + 1):
            sampled, judged = trajectories(model, scorer)
            weights = advantages(judged)
            loss = -sum((weights[n] * log_probability(model, turn)).mean() for n, turn in enumerate(sampled)) / TURNS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 or step == 1:
                means = [sum(turn.result.reward or 0.0 for turn in turns) / TRAJECTORIES for turns in judged]
                print(f"step {step}: mean reward of each turn", *(f"{mean:.2f}" for mean in means), flush=True)


if __name__ == "__main__":
    main()
