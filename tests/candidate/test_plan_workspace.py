"""Buffers that share memory, and buffers that must not."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.candidate import PlanLimits, ResolvedPlan, parse_plan
from kernelforge.candidate.assembly import share
from kernelforge.candidate.plan_language.values import Fault, Storage
from kernelforge.candidate.resolved import Fill, TensorArg
from kernelforge.records import DType, TensorSpec

X = TensorSpec.contiguous((8, 32), DType.FLOAT32)
CHAIN = """
def forward(x):
    h = x
    for i in range(6):
        h2 = empty_like(x)
        step[1, 32](h, h2)
        h = h2
    out = empty_like(x)
    last[1, 32](h, out)
    return out
"""


def resolve(text: str, **limits: int) -> ResolvedPlan:
    return parse_plan(text).resolve([X], {}, {}, limits=PlanLimits(**limits))


def workspace(plan: ResolvedPlan) -> list[int]:
    return [buffer.nbytes for buffer in plan.buffers if buffer.kind == "workspace"]


def test_a_chain_needs_two_buffers_and_its_output() -> None:
    assert workspace(resolve(CHAIN)) == [X.nbytes] * 3


def test_a_launch_never_reads_and_writes_one_buffer_by_reuse() -> None:
    for launch in resolve(CHAIN).launches:
        read, written = launch.args
        assert isinstance(read, TensorArg)
        assert isinstance(written, TensorArg)
        assert read.buffer != written.buffer


def test_an_output_has_a_buffer_of_its_own() -> None:
    plan = resolve(CHAIN)
    output = plan.outputs[0].buffer
    assert [launch.line for launch in plan.launches if any(arg.buffer == output for arg in launch.args)] == [9]


def test_a_view_keeps_its_buffer_alive() -> None:
    plan = resolve("""
def forward(x):
    a = empty_like(x)
    first[1, 1](x, a)
    row = a[3]
    b = empty_like(x)
    second[1, 1](x, b)
    out = empty_like(x)
    third[1, 1](row, b, out)
    return out
""")
    a, b = plan.launches[0].args[1], plan.launches[1].args[1]
    assert a.buffer != b.buffer
    assert plan.launches[2].args[0] == TensorArg(a.buffer, 3 * 32 * 4, DType.FLOAT32)


def test_a_returned_view_keeps_its_buffer_to_the_end() -> None:
    plan = resolve("""
def forward(x):
    both = empty((2, 8, 32))
    first[1, 1](x, both)
    other = empty((2, 8, 32))
    second[1, 1](x, other)
    return both[1]
""")
    assert len(workspace(plan)) == 2
    assert plan.outputs[0].offset_bytes == 8 * 32 * 4


def test_a_memset_is_a_use() -> None:
    plan = resolve("""
def forward(x):
    out = empty_like(x)
    a = empty_like(x)
    b = zeros_like(x)
    first[1, 1](x, a)
    second[1, 1](a, b, out)
    return out
""")
    fill = next(step for step in plan.steps if isinstance(step, Fill))
    assert fill.buffer not in {arg.buffer for arg in plan.launches[0].args}
    assert fill == Fill(fill.buffer, 0, X.nbytes, 5)


def test_tensors_that_nothing_uses_get_no_buffer() -> None:
    plan = resolve(
        "def forward(x):\n    a = empty_like(x)\n    out = empty_like(x)\n    k[1, 1](x, out)\n    return out\n"
    )
    assert workspace(plan) == [X.nbytes]


SHRINKING = """
def forward(x):
    out = empty((4,))
    a = empty((1000,))
    one[1, 1](x, a)
    b = empty((500,))
    two[1, 1](x, b)
    three[1, 1](b, out)
    return out
"""


def test_tensors_of_different_sizes_share_only_when_they_must() -> None:
    assert sorted(workspace(resolve(SHRINKING))) == [16, 2000, 4000]
    assert sorted(workspace(resolve(SHRINKING, workspace_bytes=4016))) == [16, 4000]


def test_a_buffer_is_named_after_its_tensors() -> None:
    assert {buffer.label for buffer in resolve(SHRINKING).buffers} == {"x", "a", "b", "out"}
    labels = {buffer.label for buffer in resolve(SHRINKING, workspace_bytes=4016).buffers}
    assert labels == {"x", "a / b", "out"}


intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10), st.sampled_from([16, 64, 64, 256]), st.booleans()), max_size=40
)


@pytest.mark.slow
@given(intervals)
def test_storages_in_one_slot_never_live_at_the_same_time(spec: list[tuple[int, int, int, bool]]) -> None:
    storages, outputs = [], set()
    for first, length, nbytes, is_output in spec:
        storage = Storage("workspace", nbytes)
        storage.touch(first)
        storage.touch(first + length)
        storages.append(storage)
        if is_output:
            outputs.add(storage)
    exact = share([storages], outputs, 1 << 40)
    assert all(storage.nbytes == slot.nbytes for slot in exact for storage in slot.storages)
    packings = [exact]
    with contextlib.suppress(Fault):
        packings.append(share([storages], outputs, max(0, sum(slot.nbytes for slot in exact) - 1)))
    for slots in packings:
        assert sorted(map(id, storages)) == sorted(id(storage) for slot in slots for storage in slot.storages)
        for slot in slots:
            assert len(slot.storages) == 1 or not outputs & set(slot.storages)
            for before, after in itertools.pairwise(slot.storages):
                assert after.first_use is not None
                assert before.last_use < after.first_use
                assert after.nbytes <= slot.nbytes
