"""The cache of builds: what it keeps, what it drops, and that identical builds are one build."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from kernelforge.compile import Artifact, BuildCache, Compiler
from kernelforge.records import Build

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


@pytest.fixture
def counted(compiler, tmp_path, monkeypatch):
    """A compiler with a cache of its own that counts its real compilations."""
    counting = Compiler(tmp_path / "cache")
    counting._zygotes["cuda"] = compiler._running_zygote("cuda")
    done = []
    compile_one = counting._compile

    def count(*arguments):
        done.append(arguments)
        return compile_one(*arguments)

    monkeypatch.setattr(counting, "_compile", count)
    counting.compilations = done
    return counting


def second(counted, tmp_path):
    """Another compiler on the same folder: nothing in memory."""
    counted.cache = BuildCache(tmp_path / "cache")
    return counted


@pytest.mark.slow
def test_the_same_build_is_compiled_once(counted, tmp_path):
    first = counted.build(KERNEL, ["k"])
    cached = counted.build(KERNEL, ["k"])
    from_disk = second(counted, tmp_path).build(KERNEL, ["k"])
    assert len(counted.compilations) == 1
    assert (first.build.cached, cached.build.cached, from_disk.build.cached) == (False, True, True)
    assert from_disk.build.seconds == 0
    assert (first.ptx, first.cubin) == (from_disk.ptx, from_disk.cubin)
    assert first.build.key == from_disk.build.key


@pytest.mark.slow
def test_everything_that_matters_is_in_the_key(counted):
    keys = {
        counted.build(KERNEL, ["k"]).build.key,
        counted.build(KERNEL + " ", ["k"]).build.key,
        counted.build(KERNEL, ["k"], arch="sm_80").build.key,
        counted.build(KERNEL, ["k"], constants={"N": 1}).build.key,
        counted.build(KERNEL, ["k"], constants={"N": 2}).build.key,
    }
    assert len(keys) == 5


def test_failed_builds_are_kept_too(counted, tmp_path):
    assert isinstance(counted.build("nonsense", ["k"]), Build)
    cached = second(counted, tmp_path).build("nonsense", ["k"])
    assert cached.cached
    assert cached.errors
    assert len(counted.compilations) == 1


def test_the_gate_judges_cached_builds_by_the_use_they_are_put_to(counted):
    source = '__global__ void k(float* x) { printf("x"); }'
    assert isinstance(counted.build(source, ["k"], scored=False), Artifact)
    assert counted.build(source, ["k"]).refused
    assert len(counted.compilations) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_entry_is_dropped_and_built_again(counted, tmp_path, damage):
    first = counted.build(KERNEL, ["k"])
    (entry,) = (tmp_path / "cache").glob("*/*.build")
    raw = entry.read_bytes()
    if damage == "other":
        counted.build(KERNEL + "// other", ["k"])
        (other,) = set((tmp_path / "cache").glob("*/*.build")) - {entry}
        raw = other.read_bytes()
    entry.write_bytes({"cut": raw[:-7], "flipped": raw[:-7] + b"!" + raw[-6:], "empty": b"", "other": raw}[damage])
    before = len(counted.compilations)
    rebuilt = second(counted, tmp_path).build(KERNEL, ["k"])
    assert len(counted.compilations) == before + 1
    assert rebuilt.cubin == first.cubin
    assert second(counted, tmp_path).build(KERNEL, ["k"]).build.cached


def test_a_folder_that_takes_nothing_still_gives_the_build(counted, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    counted.cache = BuildCache(blocked / "cache")
    assert isinstance(counted.build(KERNEL, ["k"]), Artifact)
    assert "cannot be written" in counted.cache.write_error
    assert counted.build(KERNEL, ["k"]).build.cached, "it is kept in memory"


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="mounting a full disk needs root")
def test_a_full_disk_still_gives_the_build(tmp_path):
    script = f"""
        from kernelforge.sandbox import syscalls as linux
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("tmpfs", {str(tmp_path)!r}, "tmpfs", 0, "size=4k")
        from pathlib import Path
        from kernelforge.compile import Compiler
        with Compiler(Path({str(tmp_path)!r})) as compiler:
            print(type(compiler.build({KERNEL!r}, ["k"])).__name__)
            print(compiler.cache.write_error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.startswith("Artifact"), done.stderr
    assert "No space left on device" in done.stdout


def test_threads_that_ask_for_the_same_build_share_it(counted):
    results = []
    threads = [threading.Thread(target=lambda: results.append(counted.build(KERNEL, ["k"]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(counted.compilations) == 1
    assert sum(not result.build.cached for result in results) == 1


@pytest.mark.slow
def test_processes_that_ask_for_the_same_build_share_it(tmp_path):
    script = f"""
        from pathlib import Path
        from kernelforge.compile import Compiler
        with Compiler(Path({str(tmp_path)!r})) as compiler:
            compiler.start()
            print(compiler.build({KERNEL!r}, ["k"]).build.cached)
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = sorted(process.communicate(timeout=240)[0].strip() for process in processes)
    assert outputs == ["False", "True"]


def test_the_folder_is_bounded_oldest_first(tmp_path, monkeypatch):
    monkeypatch.setattr("kernelforge.compile.cache._WRITES_BETWEEN_PRUNES", 0)
    store = BuildCache(tmp_path, max_bytes=20_000)
    for number, name in enumerate("abcdef"):
        build = Build(key=name * 16, ok=True, arch="sm_90a", toolchain="nvrtc 13.0.88", seconds=0)
        store.put(name * 16, Artifact(build, b"", bytes(6000)))
        os.utime(tmp_path / (name * 2) / f"{name * 16}.build", ns=(number, number))
    remaining = {path.stem[0] for path in tmp_path.glob("*/*.build")}
    assert "f" in remaining
    assert "a" not in remaining
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*.build")) <= 20_000


def test_memory_is_bounded(monkeypatch):
    from kernelforge.compile import cache as module

    monkeypatch.setattr(module, "_MEMORY_ENTRIES", 2)
    store = BuildCache(None)
    for name in "abc":
        build = Build(key=name, ok=True, arch="sm_90a", toolchain="nvrtc 13.0.88", seconds=0)
        store.put(name, Artifact(build, b"", b""))
    assert [store.get(name) is not None for name in "abc"] == [False, True, True]
