"""Nodes for Ray's autoscaler that are processes of this machine: the provider that its configuration names."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

HEAD = "head"
"""Instance id with which the head has to be started, and the type of it."""
NODE = "node"
"""Type of the other nodes."""


def start_command(*options: str) -> list[str]:
    """The command that starts a node, and ends it and what it runs when it is sent SIGTERM."""
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]


def node_environment(instance: str) -> dict[str, str]:
    """The environment of a node that the autoscaler is to recognise as one of its instances."""
    return {**os.environ, "RAY_CLOUD_INSTANCE_ID": instance}


def autoscaling_config(address: str, resources: Mapping[str, float], most: int, idle_s: float) -> dict[str, Any]:
    """A configuration with at most ``most`` nodes of these resources, each ended after ``idle_s`` seconds of idling."""
    lists = (
        "cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands",
        "head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
    )  # fmt: skip
    return {
        "cluster_name": "processes",
        "max_workers": most,
        "idle_timeout_minutes": idle_s / 60,
        "provider": {
            "type": "external",
            "module": f"{__name__}.ProcessNodes",
            "address": address,
            "disable_node_updaters": True,
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            NODE: {"resources": dict(resources), "node_config": {}, "min_workers": 0, "max_workers": most},
        },
    }


class ProcessNodes(NodeProvider):
    """Starts a node as a process that is a child of the autoscaler's, and ends it with all that it runs. Ray calls it
    from several threads."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._lock = threading.Lock()
        self._tags = {
            HEAD: {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD, TAG_RAY_NODE_STATUS: "up-to-date"}
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        amounts = dict(resources)
        command = start_command(
            f"--address={self.provider_config['address']}",
            f"--num-cpus={int(amounts.pop('CPU'))}",
            f"--object-store-memory={int(amounts.pop('object_store_memory'))}",
            f"--resources={json.dumps(amounts)}",
        )
        for _ in range(count):
            instance = f"node-{secrets.token_hex(4)}"
            process = subprocess.Popen(command, env=node_environment(instance), start_new_session=True)
            with self._lock:
                self._processes[instance], self._tags[instance] = process, dict(tags)

    def terminate_node(self, node_id: str) -> None:
        with self._lock:
            process = self._processes[node_id]
        process.terminate()
        process.wait()

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            instances = {instance: dict(tags) for instance, tags in self._tags.items()}
        return [
            instance
            for instance, tags in instances.items()
            if self.is_running(instance) and tag_filters.items() <= tags.items()
        ]

    def is_running(self, node_id: str) -> bool:
        with self._lock:
            process = self._processes.get(node_id)
        return node_id == HEAD or (process is not None and process.poll() is None)

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self._lock:
            return dict(self._tags[node_id])

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        with self._lock:
            self._tags[node_id].update(tags)

    def internal_ip(self, node_id: str) -> str:
        return "127.0.0.1"

    def external_ip(self, node_id: str) -> str:
        return "127.0.0.1"
