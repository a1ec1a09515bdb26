"""Cheats that need no GPU gain nothing: each has the verdict that its honest twin's values would have, or worse."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kernelforge.evaluation.stages.compile_stage import HIDDEN_REASONS
from kernelforge.records import Verdict
from tests.modelnew.modelnew_setup import Judge, forward


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    ["x.data_ptr()", "(x.data_ptr(), x._version, tuple(x.shape))", "tuple(x.shape)", "x.untyped_storage().data_ptr()"],
)
def test_a_result_kept_by_address_or_shape_is_stale(judge: Judge, key: str) -> None:
    lines = (f"if {key} not in self.kept:", f"    self.kept[{key}] = self.honest(x, y)", f"return self.kept[{key}]")
    judge(forward(*lines), Verdict.WRONG)


def test_the_first_calls_right_and_later_ones_not_is_found(judge: Judge) -> None:
    lines = ("self.calls = getattr(self, 'calls', 0) + 1", "return self.honest(x, y) * (self.calls < 3)")
    judge(forward(*lines), Verdict.WRONG)


def test_a_patched_comparison_judges_nothing(judge: Judge) -> None:
    patches = "import torch\ntorch.allclose = torch.equal = lambda *a, **k: True\ntorch.testing.assert_close = print\n"
    judge(forward("return x", before=patches), Verdict.WRONG)


@pytest.mark.slow
def test_patched_timers_and_synchronisation_change_nothing(judge: Judge) -> None:
    patches = (
        "import time, torch\ntime.perf_counter = time.time = lambda: 0.0\ntorch.cuda.synchronize = lambda *a: None\n"
    )
    assert judge(forward("return self.honest(x, y)", before=patches)).performance is None


@pytest.mark.slow
def test_returning_or_overwriting_an_input_is_wrong(judge: Judge) -> None:
    judge(forward("return x"), Verdict.WRONG)
    judge(forward("out = self.honest(x, y)", "x.copy_(out)", "return x"), Verdict.WRONG, "input 0 was changed")
    judge(forward("y.data.zero_()", "return self.honest(x, y)"), Verdict.WRONG, "input 1 was changed")


def test_a_thread_that_writes_late_writes_too_late(judge: Judge) -> None:
    """It waits for the next call: by then the answer to this one is out."""
    lines = (
        "import threading",
        "for other in self.kept.values(): other.set()",
        "again = self.kept[len(self.kept)] = threading.Event()",
        "out = torch.zeros_like(x)",
        "def late():",
        "    again.wait()",
        "    with torch.no_grad(): out.copy_(self.honest(x, y))",
        "threading.Thread(target=late, daemon=True).start()",
        "return out",
    )
    judge(forward(*lines), Verdict.WRONG)


LAZY = """
import torch

class Lazy(torch.Tensor):
    @staticmethod
    def make(like, work):
        made = torch.Tensor._make_subclass(Lazy, torch.empty_like(like))
        made.work = work
        return made

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.copy_ and not getattr(cls, "idle", False):
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].copy_(args[1].work())
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))
"""


@pytest.mark.slow
def test_a_lazy_tensor_is_computed_before_its_bytes_are_taken(judge: Judge) -> None:
    judge(forward("return Lazy.make(x, lambda: self.honest(x, y))", before=LAZY))
    judge(forward("Lazy.idle = True", "return Lazy.make(x, lambda: self.honest(x, y))", before=LAZY), Verdict.WRONG)


def test_methods_overridden_on_an_output_are_not_called(judge: Judge) -> None:
    lines = (
        "out = torch.zeros_like(x)",
        "right = self.honest(x, y)",
        "for name in ('cpu', 'detach', 'contiguous', 'numpy', 'double', 'clone'): setattr(out, name, lambda *a: right)",
        "return out",
    )
    judge(forward(*lines), Verdict.WRONG)


def test_nothing_of_the_reference_is_in_the_process(judge: Judge) -> None:
    """Frames, modules and every living object are searched for a reference, expected values or a seed."""
    lines = (
        "import gc, sys",
        "words = ('reference', 'expected', 'reckoner', 'seed')",
        "frame, found = sys._getframe(), []",
        "while frame:",
        "    found += [n for n in (*frame.f_locals, *frame.f_globals) if n in ('reference', 'expected', 'reckoner')]",
        "    frame = frame.f_back",
        "for one in gc.get_objects():",
        "    if type(one).__name__ in ('Reference', 'Reckoner', 'Drawn', 'Oracle', 'Expected'): found.append(one)",
        "    if isinstance(one, dict) and one.get('op') and 'seed' in one: found.append('seed')",
        "if found: raise RuntimeError(f'found {found[0]}')",
        "mine = [p for p in gc.get_objects() if isinstance(p, torch.Tensor) and p.shape == x.shape]",
        "guesses = [p for p in mine if p is not x and p is not y and (p >= 0.5).all()]",
        "return guesses[0].clone() if guesses else torch.zeros_like(x)",
    )
    judge(forward(*lines), Verdict.WRONG)


CANARY = "kernelforge-canary-5b1e"


@pytest.fixture
def secrets_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELFORGE_CANARY", CANARY)
    path = tmp_path / "secret.txt"
    path.write_text(CANARY)
    path.chmod(0o644)
    return path


def test_files_and_environment_of_the_parent_are_out_of_reach(judge: Judge, secrets_outside: Path) -> None:
    reads = (
        "import os, glob",
        "seen = str(dict(os.environ))",
        f"paths = [{str(secrets_outside)!r}, '/etc/passwd', '/proc/1/environ', '/proc/self/environ']",
        "for path in paths + glob.glob('/proc/[0-9]*/environ'):",
        "    try: seen += open(path).read()",
        "    except OSError: seen += 'refused '",
        "raise RuntimeError(seen)",
    )
    reason = judge(forward(*reads), Verdict.CRASH, "refused").reason
    assert CANARY not in reason
    assert "root:" not in reason


@pytest.mark.slow
def test_nothing_written_outlives_the_candidate(judge: Judge) -> None:
    mark = f"/tmp/kernelforge-mark-{os.getpid()}"
    write = ("import os", f"open({mark!r}, 'w').write('x')", "return self.honest(x, y)")
    look = ("import os", f"assert not os.path.exists({mark!r}), 'residue'", "return self.honest(x, y)")
    judge(forward(*write))
    assert not Path(mark).exists()
    judge(forward(*look))


def test_the_network_is_out_of_reach(judge: Judge) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        reached = threading.Event()

        def accept() -> None:
            try:
                server.accept()
                reached.set()
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        port = server.getsockname()[1]
        judge(forward("import socket", f"socket.create_connection(('127.0.0.1', {port}), 1)"), Verdict.CRASH)
        assert not reached.is_set()


def test_a_forged_answer_is_compared_like_any_other(judge: Judge) -> None:
    """Taking over the worker's channel gains nothing: it can say only bytes, and they have to be right."""
    send = (
        "import gc",
        "from kernelforge.sandbox.channel import Channel",
        "channel = next(o for o in gc.get_objects() if type(o) is Channel)",
    )
    zeros = "bytes(x.numel() * 4)"
    spec = "{'shape': list(x.shape), 'dtype': 'float32'}"
    raws = "[bytes(t.numpy().tobytes()) for t in (x, y)]"
    judge(
        forward(*send, f"channel.send({{'ok': True, 'outputs': [{spec}], 'inputs': [0, 1]}}, [{zeros}, *{raws}])"),
        Verdict.WRONG,
    )
    judge(forward(*send, "channel.send({'ok': True})"), Verdict.POLICY, "cannot be read")
    judge(forward(*send, "channel._sock.send(b'x' * 64)"), Verdict.POLICY, "frame")


CHANNEL = "import gc, time; from kernelforge.sandbox.channel import Channel"
TAKE = "channel = next(o for o in gc.get_objects() if type(o) is Channel)"
AT_HIDDEN = "if x.shape[0] != 7: return self.honest(x, y)"


@pytest.mark.parametrize(
    "message",
    [
        "{'ok': False, 'failure': {'kind': 'crash', 'type': '', 'text': 'seven', 'line': None}}",
        "{'ok': False, 'failure': {'kind': 'policy', 'type': 'seven', 'text': '', 'line': 10**9}}",
        "{'crash': 'seven'}",
        "{'crash': 'out of memory seven'}",
    ],
)
def test_what_a_candidate_says_of_a_hidden_size_is_not_repeated(judge: Judge, message: str) -> None:
    lines = (AT_HIDDEN, TAKE, f"channel.send({message})", "import os; os._exit(0)")
    verdict = Verdict.POLICY if "policy" in message else Verdict.CRASH
    assert judge(forward(*lines, before=CHANNEL), verdict).reason == HIDDEN_REASONS[verdict]


@pytest.mark.slow
def test_a_type_of_its_own_tells_nothing_of_a_hidden_size(judge: Judge) -> None:
    raises = "raise type('seven', (Exception,), {})('seven')"
    for text in (
        forward(AT_HIDDEN, raises),
        forward("return self.honest(x, y)").replace("self.kept", f"if features == 33: {raises}\n        self.kept"),
    ):
        assert judge(text, Verdict.CRASH).reason == HIDDEN_REASONS[Verdict.CRASH]


@pytest.mark.parametrize("text", ["RuntimeError('\\ud800')", "RuntimeError('\\udfff' * 9)"])
def test_text_that_cannot_be_written_becomes_text_that_can(judge: Judge, text: str) -> None:
    assert judge(forward(f"raise {text}"), Verdict.CRASH, "RuntimeError: ?").model_dump_json()


@pytest.mark.slow
def test_what_a_candidate_says_is_of_bounded_length(judge: Judge) -> None:
    leave = "import os; os._exit(0)"
    for text in (
        "{'crash': 'A' * (8 << 20)}",
        "{'ok': False, 'failure': {'kind': 'crash', 'type': 'B' * 9999, 'text': 'A' * 99999, 'line': 10**300}}",
    ):
        reason = judge(forward(TAKE, f"channel.send({text})", leave, before=CHANNEL), Verdict.CRASH).reason
        assert len(reason) < 10_000
        assert "line" not in reason


@pytest.mark.parametrize("shape", ["[1] * 100000", "[-8, -32]", "[10**30, 0]", "'8' * 70", "{}"])
def test_a_shape_that_no_tensor_has_is_refused(judge: Judge, shape: str) -> None:
    tensors = "[bytes(x.numel() * 4), x.numpy().tobytes(), y.numpy().tobytes()]"
    answer = f"{{'ok': True, 'outputs': [{{'shape': {shape}, 'dtype': 'float32'}}], 'inputs': [0, 1]}}"
    text = forward(TAKE, f"channel.send({answer}, {tensors})", "time.sleep(2)", before=CHANNEL)
    assert len(judge(text, Verdict.POLICY, "cannot be read").reason) < 300


def test_a_reply_larger_than_any_output_is_refused_before_it_is_read(judge: Judge) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    block = "bytes(1 << 20)"
    answer = "{'ok': True, 'outputs': [], 'inputs': []}"
    judge(forward(TAKE, f"channel.send({answer}, [{block}] * 400)", before=CHANNEL), Verdict.POLICY, "size cap")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.slow
def test_a_flood_of_output_goes_nowhere(judge: Judge) -> None:
    judge(forward("print('flood' * 1000000)", "return self.honest(x, y)"))
