"""A combination of ``# tune:`` values can be evaluated by name, and shown so that it is evaluated again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.candidate import parse_reply

REPLY = """
```cuda
__global__ void transpose(const float* x, float* out, int n, int m) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n * m) out[i] = x[(i % n) * m + i / n];
}
```

```python
# tune: BLOCK = 64 | 128 | 256
def forward(x):
    n, m = x.shape
    out = empty((m, n), dtype=x.dtype)
    transpose[ceil_div(n * m, BLOCK), BLOCK](x, out, i32(n), i32(m))
    return out
```
"""


@pytest.mark.slow
def test_eval_takes_a_choice_and_says_which_there_are_not(cli, tmp_path: Path):
    (tmp_path / "reply.md").write_text(REPLY)
    done = cli("eval", "reply.md", "--task", "transpose", "--choose", "BLOCK=256", "--json")
    assert done.code == 0, done.out
    data = done.json()
    (kernel,) = data["profile"]["kernels"]
    assert kernel["block"] == [256, 1, 1]
    selected = parse_reply(REPLY).model_copy(update={"choices": {"BLOCK": 256}})
    assert data["evaluation"]["candidate"] == selected.hash
    done = cli("eval", "reply.md", "--task", "transpose", "--choose", "BLOCK=100")
    assert done.code == 1
    assert "BLOCK = 100 is not one of 64 | 128 | 256" in done.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--choose", "BLOCK"], "such as BLOCK=256, not 'BLOCK'"),
        (["--choose", "BLOCK=many"], "not 'BLOCK=many'"),
        (["--choose", "BLOCK=64", "--choose", "BLOCK=128"], "two values: 64 and 128"),
    ],
)
def test_a_malformed_choice_is_bad_input(cli, tmp_path: Path, options: list[str], words: str):
    (tmp_path / "reply.md").write_text(REPLY)
    done = cli("eval", "reply.md", "--task", "transpose", *options)
    assert done.code == 2
    assert words in done.err


@pytest.mark.slow
def test_a_chosen_candidate_is_shown_as_one_that_takes_its_choices_by_itself(cli, journal: Path):
    rendered = parse_reply(cli("show", "softmax/1", "--candidate").out)
    # The golden candidates choose 256 of "128 | 256".
    assert rendered.plan.startswith("# tune: BLOCK = 256 | 128\n")
    assert cli("show", "softmax/1", "--json").json()["choices"] == {"BLOCK": 256}
