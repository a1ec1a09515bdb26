"""Addresses of devices on other machines are read strictly, and their hosts are never an option of ssh."""

from __future__ import annotations

import pytest

from kernelforge.devices import check_device, make_device
from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.devices.remote.address import HostAddress, join_host, parse_address, split_host
from kernelforge.devices.remote.ssh import client_command, client_environment, why_ended
from kernelforge.errors import DeviceError, UsageError


@pytest.mark.parametrize(
    ("url", "address", "device"),
    [
        ("ssh://box", HostAddress("box"), "cuda:0"),
        ("ssh://box@Box/cuda", HostAddress("Box", "box"), "cuda"),
        ("ssh://box/cuda:0,cuda:2", HostAddress("box"), "cuda:0,cuda:2"),
        ("ssh://box/cpu", HostAddress("box"), "cpu"),
        ("ssh://me@box:2222/cuda:3", HostAddress("box", "me", 2222), "cuda:3"),
        ("ssh://box/emulated", HostAddress("box"), "emulated:h100"),
        ("ssh://[::1]:22/emulated:a100", HostAddress("::1", port=22), "emulated:a100"),
        ("ssh://box/cuda:0?python=/opt/own/bin/python", HostAddress("box", python="/opt/own/bin/python"), "cuda:0"),
    ],
)
def test_an_address_names_a_machine_and_a_device(url: str, address: HostAddress, device: str) -> None:
    assert parse_address(url) == (address, device)
    assert parse_address(address.url(device)) == (address, device)
    assert split_host(url) == (address.url(), device)
    assert join_host(*split_host(url)) == address.url(device)


@pytest.mark.parametrize(
    "url",
    [
        "ssh://",
        "ssh://-oProxyCommand=id/cuda:0",
        "ssh://-l@box/cuda:0",
        "ssh://me:secret@box/cuda:0",
        "ssh://box:port/cuda:0",
        "ssh://box/cuda:0,emulated:h100",
        "ssh://box/emulated:../own.toml",
        "ssh://box/cuda:0?python=python3",
        "ssh://box/cuda:0?pyhton=/usr/bin/python3",
        "ssh://box;id/cuda:0",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="ssh://"):
        parse_address(url)


@pytest.mark.parametrize(
    ("text", "machines", "host", "device"),
    [
        ("ssh://a/cuda:0,ssh://a/cuda:1", ("ssh://a/cuda:0,cuda:1",), "ssh://a", "cuda:0,cuda:1"),
        ("ssh://a/cuda,ssh://me@b:22/cuda", ("ssh://a/cuda", "ssh://me@b:22/cuda"), "ssh://a,ssh://me@b:22", "cuda"),
        (
            "ssh://a/cuda:0,cuda:1, ssh://b?python=/x%2Cy/python",
            ("ssh://a/cuda:0,cuda:1", "ssh://b/cuda:0?python=/x%2Cy/python"),
            "ssh://a,ssh://a,ssh://b?python=/x%2Cy/python",
            "cuda:0,cuda:1,cuda:0",
        ),
        ("ssh://a/cuda:1,ssh://b/cuda:2", ("ssh://a/cuda:1", "ssh://b/cuda:2"), "ssh://a,ssh://b", "cuda:1,cuda:2"),
        (
            "ssh://a/emulated:l4,ssh://b/emulated:l4",
            ("ssh://a/emulated:l4", "ssh://b/emulated:l4"),
            "ssh://a,ssh://b",
            "emulated:l4",
        ),
    ],
)
def test_a_list_has_one_address_for_each_machine(text: str, machines: tuple[str, ...], host: str, device: str) -> None:
    assert parse_devices(text) == machines
    assert split_host(text) == (host, device)
    assert join_host(host, device) == ",".join(machines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ssh://a/cuda:0,ssh://a/cuda:0", "names ssh://a/cuda:0 twice"),
        ("ssh://a/cuda,ssh://a/cuda:0", "twice"),
        ("ssh://a/emulated:l4,ssh://a/emulated:l4", "twice"),
        ("ssh://a/cuda:0,ssh://b/emulated:l4", "mixes kinds"),
        ("ssh://a/emulated:l4,ssh://b/emulated:h100", "mixes kinds"),
        ("cuda:0,ssh://a/cuda:0", "take those of one side"),
        ("ssh://a/cpu", "cpu runs ModelNew classes alone"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_devices(text)


def test_a_device_there_needs_no_such_device_here() -> None:
    assert parse_devices("ssh://box/cuda:7") == ("ssh://box/cuda:7",)
    assert check_device("SSH://box/emulated") == "ssh://box/emulated:h100"
    with pytest.raises(DeviceError, match="h100"):
        check_device("ssh://box/emulated:h1000")


def test_the_client_asks_nothing_and_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "MODAL_TOKEN_SECRET"):
        monkeypatch.setenv(name, "canary")
    assert "canary" not in client_environment(HostAddress("box")).values()
    command = client_command(HostAddress("box", "me", 2222))
    assert "BatchMode=yes" in command
    assert command[command.index("-p") + 1] == "2222"
    assert command[-3:-1] == ["--", "me@box"]


def test_a_command_that_does_not_reach_other_machines_says_so() -> None:
    with pytest.raises(UsageError, match="start it there, with ssh"):
        make_device("ssh://box/cuda:0")


def test_a_port_that_fails_is_told_from_the_number_of_a_gpu() -> None:
    address, _ = parse_address("ssh://box:0")
    assert "`ssh -p 0 box` works; 0 is a port there, as in ssh://host[:port]/cuda:N" in str(
        why_ended(address, ["Bad port '0'"])
    )
    assert "host[:port]" not in str(why_ended(parse_address("ssh://box")[0], ["no route to host"]))


def test_a_key_that_changed_is_no_unknown_one() -> None:
    address = parse_address("ssh://box")[0]
    changed = why_ended(
        address, ["@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."]
    )
    assert "another one than the known one" in str(changed)
    assert "is not known here" in str(why_ended(address, ["Host key verification failed."]))
