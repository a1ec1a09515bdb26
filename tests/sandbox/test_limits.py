"""Each limit comes back as what it is, and the next child works."""

import contextlib
import os
import shutil
import struct
from dataclasses import replace

import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.sandbox import resource_monitor
from kernelforge.sandbox.policy import PATIENCE, Deadline
from tests.sandbox.jail_setup import LIMITS, gone


@pytest.mark.slow
def test_a_memory_hog_dies_of_memory(child, act):
    with pytest.raises(ChildDied, match="out of memory"):
        act("hog", 1024)
    assert child.death().cause == "memory"


def test_mapped_memory_is_limited_too(act):
    assert "Cannot allocate" in act("map_hog", 1024)["gave"]


def test_reserved_memory_counts_where_it_is_touched(zygote):
    limits = replace(LIMITS, reserved_bytes=4 << 30)
    with zygote.spawn(limits) as child:
        assert child.call({"act": "private_memory", "arguments": [2048]}).data["reply"]["gave"] == "mapped"
        with pytest.raises(ChildDied, match="out of memory"):
            child.call({"act": "map_hog", "arguments": [1024, 100]})
        assert child.death().cause == "memory"


def test_a_page_that_is_mapped_again_and_again_counts_once(zygote):
    with zygote.spawn(replace(LIMITS, reserved_bytes=4 << 30)) as child:
        read = child.call({"act": "map_again", "arguments": [600]}).data["reply"]["gave"]
        assert read == ord("x") * 256 * 600


def test_memory_files_are_refused(act):
    assert not act("memfd_hog")["opened"]


@pytest.mark.slow
def test_a_busy_loop_dies_of_cpu_time(zygote):
    limits = replace(LIMITS, cpu_s=1)
    with zygote.spawn(limits) as child:
        with pytest.raises(ChildDied, match="out of CPU time"):
            child.call({"act": "spin"})
        assert child.death().cause == "cpu"


def test_a_silent_child_is_killed_at_the_wall_limit(child, act):
    with pytest.raises(ChildTimeout, match="was killed"):
        act("sleep", 600, timeout_s=0.2)
    assert child.death().cause == "killed"


@pytest.mark.slow
def test_a_child_that_does_not_work_on_its_answer_is_killed_before_the_wall_limit(zygote):
    limits = replace(LIMITS, cpu_s=1, idle_s=2.0)
    with zygote.spawn(limits) as child:
        with pytest.raises(ChildTimeout, match="used no processor for 2 s and was killed"):
            child.call({"act": "sleep", "arguments": [600]})
        assert child.death().cause == "killed"
    with zygote.spawn(limits) as child:
        assert child.call({"act": "echo"}).data["reply"] == []
        with pytest.raises(ChildDied, match="out of CPU time"):
            child.call({"act": "spin"})


@pytest.mark.slow
def test_an_answer_has_a_limit_of_cpu_time_for_itself(zygote):
    with zygote.spawn(replace(LIMITS, answer_cpu_s=0.5, idle_s=2.0)) as child:
        assert child.call({"act": "echo"}).data["reply"] == []
        with pytest.raises(ChildTimeout, match=r"gave no answer in 0\.5 s of CPU time and was killed"):
            child.call({"act": "spin"})


def test_a_disk_fill_dies_of_disk(child, act):
    with pytest.raises(ChildDied, match="out of temporary space"):
        act("fill_tmp")
    assert child.death().cause == "disk"


def test_files_where_paths_are_too_long_to_look_at_count(child, act):
    """In a private root the size of /tmp holds; in a plain folder its depth is limited."""
    with pytest.raises(ChildDied) if child.layers[0] != "namespaces" else contextlib.nullcontext():
        act("deepen", 110, 100)
        assert "No space left" in act("fill_slowly", 60)["gave"]


@pytest.mark.slow
def test_a_folder_too_deep_to_recurse_into_is_removed(zygote):
    with zygote.spawn(LIMITS) as child:
        tmp = child.call({"act": "environment"}).data["reply"]["gave"]["TMPDIR"]
        with contextlib.suppress(ChildDied):
            child.call({"act": "deepen", "arguments": [3000, 1]})
    assert zygote.tier == "namespaces" or not os.path.lexists(tmp)


def test_one_file_is_limited(act):
    tmp = act("environment")["gave"]["TMPDIR"]
    assert act("write", os.path.join(tmp, "small"), 1 << 20)["opened"]
    assert not act("write", os.path.join(tmp, "large"), 3 << 20)["opened"]


def test_threads_are_limited(act, zygote):
    if zygote.tier == "landlock" and os.getuid() != 0:
        pytest.skip("without namespaces a user's own processes would count")
    assert act("thread_bomb")["gave"] <= 8


def test_a_reply_over_its_cap_is_refused(child, act):
    with pytest.raises(SandboxError, match="size cap"):
        act("big", 16)
    assert child.death().cause == "killed"


def test_a_reply_that_is_known_to_be_small_has_a_cap_of_its_own(child):
    big = {"act": "big", "arguments": [4]}
    assert len(child.call(big).blobs) == 4
    assert len(child.call(big, reply_bytes=1 << 40).blobs) == 4
    with pytest.raises(SandboxError, match="size cap"):
        child.call(big, reply_bytes=1 << 20)


@pytest.mark.parametrize(
    ("json_bytes", "blobs", "total"),
    [(1 << 31, 0, 0), (10, 1 << 20, 0), (10, 1, 1 << 60), (10, 1, 5)],
    ids=["huge text", "many blobs", "huge blobs", "sums differ"],
)
def test_a_forged_header_is_refused(child, act, json_bytes, blobs, total):
    if total == 5:
        child.channel.send({"act": "raw", "arguments": [_frame_with_wrong_sum(), 1]})
        with pytest.raises(SandboxError, match="do not add up"):
            child.channel.receive(timeout_s=120)
        return
    with pytest.raises(SandboxError, match="size cap"):
        act("forged", json_bytes, blobs, total)


def _frame_with_wrong_sum():
    return (struct.pack("<4sIIIQ", b"KFF2", 2, 1, 0, 5) + struct.pack("<QB", 6, 0) + b"{}").hex()


def test_a_flood_that_is_no_frame_is_refused(act):
    with pytest.raises(SandboxError, match="frame format"):
        act("raw", "ff" * 4096, 100_000)


def test_half_a_frame_is_a_timeout(act):
    with pytest.raises(ChildTimeout):
        act("forged", 100, 0, 0, timeout_s=0.3)


@pytest.mark.parametrize("text", ["[1]", "[" * 4000, "nonsense", '"x"'])
def test_a_frame_that_is_no_object_is_refused(act, text):
    body = text.encode()
    with pytest.raises(SandboxError, match=r"not JSON|not an object"):
        act("raw", (struct.pack("<4sIIIQ", b"KFF2", len(body), 0, 0, 0) + body).hex(), 1)


def test_death_is_told_as_it_was(zygote):
    for name, argument, cause, detail in (("leave", 3, "exit", 3), ("die", 11, "signal", 11), ("die", 6, "signal", 6)):
        with zygote.spawn(LIMITS) as child:
            with pytest.raises(ChildDied) as caught:
                child.call({"act": name, "arguments": [argument]})
            death = child.death()
            assert death.cause == cause
            assert detail in (death.exit_code, death.signal)
            assert detail in (caught.value.child_exit_code, caught.value.signal)


def test_a_fault_of_the_worker_comes_back_with_its_trace(act):
    with pytest.raises(ChildDied, match="ValueError: a fault of the worker"):
        act("fail")


def test_a_child_after_a_bad_one_works(zygote):
    with zygote.spawn(LIMITS) as bad, pytest.raises(ChildDied):
        bad.call({"act": "leave", "arguments": [1]})
    with zygote.spawn(LIMITS) as good:
        assert good.call({"act": "sleep", "arguments": [0]}).data["reply"] == "awake"


def test_closing_a_child_ends_what_it_is_at(zygote):
    child = zygote.spawn(LIMITS)
    child.channel.send({"act": "sleep", "arguments": [600]})
    child.close()
    assert child.death().cause == "killed"
    assert gone(child.pid)


def test_a_process_that_ends_while_memory_is_summed_counts_for_nothing(tmp_path, monkeypatch):
    """The parent has 1 MiB of its own and shares 8 MiB with a fork that ends when its share is asked for."""
    for pid, children in ((10, "11"), (11, "")):
        task = tmp_path / f"{pid}/task/{pid}"
        task.mkdir(parents=True)
        (task / "children").write_text(children)
        (tmp_path / f"{pid}/status").write_text("RssAnon: 9216 kB\nRssShmem: 0 kB\n")
        (tmp_path / f"{pid}/smaps_rollup").write_text("Pss_Anon: 5120 kB\nPss_Shmem: 0 kB\n")
    read = resource_monitor._read

    def ends_when_asked(path, proc):
        if path == "11/smaps_rollup":
            shutil.rmtree(tmp_path / "11")
        return read(path, proc)

    monkeypatch.setattr(resource_monitor, "_read", ends_when_asked)
    proc = os.open(tmp_path, os.O_RDONLY)
    try:
        assert resource_monitor.tree_bytes(10, proc) == 5 << 20
    finally:
        os.close(proc)


def test_a_run_that_does_not_get_the_cpu_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu = [0.0], [0.0]
    monkeypatch.setattr("kernelforge.sandbox.policy.time.monotonic", lambda: wall[0])
    monkeypatch.setattr("kernelforge.sandbox.policy.time.process_time", lambda: cpu[0])
    deadline = Deadline(10.0)
    assert deadline.remaining() == 10.0
    wall[0], cpu[0] = 12.0, 7.0
    assert deadline.remaining() == 3.0
    cpu[0] = 10.0
    assert deadline.remaining() == 0.0
    wall[0], cpu[0] = 10.0, 20.0  # two threads
    assert deadline.remaining() == 0.0
    wall[0], cpu[0] = 10.0 * PATIENCE - 1, 0.0
    assert deadline.remaining() == 1.0
