"""The OpenAPI page is true: made-up requests, right and wrong, get the answers that it documents, and no 500."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kernelforge.client import models
from tests.server.http.test_auth_http import full_app
from tests.support.minimal_service import MinimalService

LOOPBACK = {"Host": "127.0.0.1"}
EXAMPLES = 4
"""Of each kind for each operation."""
NATIVE = ("jobs", "runs", "tasks", "operations")


class Tireless(MinimalService):
    """A service that continues after a request to drain."""

    async def drain(self) -> None:
        self.callers.clear()


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import schemathesis  # half a second, which collecting need not take

    app = full_app(Tireless(), tmp_path_factory.mktemp("server"))
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers=LOOPBACK)


@pytest.fixture(scope="module")
def checks() -> list[Any]:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    return [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def operations(schema: Any, tag: str) -> list[Any]:
    results = [result.ok() for result in schema.get_all_operations()]
    return [
        operation for operation in results if (operation.tags[0] if operation.tags[0] in NATIVE else "protocols") == tag
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("tag", [*NATIVE, "protocols"])
def test_answers_are_as_documented(schema: Any, checks: list[Any], tag: str, mode: str) -> None:
    from schemathesis import GenerationMode

    selected = operations(schema, tag)
    assert selected
    for operation in selected:

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
        def check(case: Any) -> None:
            case.call_and_validate(checks=checks, headers=LOOPBACK)

        check()


@pytest.mark.slow
def test_every_body_has_an_example_that_is_valid(schema: Any) -> None:
    """Native bodies only: what trainers send is described by the trainers."""
    bodies = 0
    page = schema.raw_schema
    for path, methods in page["paths"].items():
        for operation in methods.values():
            body = operation.get("requestBody")
            if body is None or operation["tags"][0] not in NATIVE:
                continue
            (described,) = body["content"].values()
            examples = [example["value"] for example in described["examples"].values()]
            model = getattr(models, described["schema"]["$ref"].rpartition("/")[2].rpartition("__")[2])
            assert examples, path
            for example in examples:
                model.model_validate(example)
            bodies += 1
    assert bodies >= 7


def test_every_operation_documents_who_is_refused(schema: Any) -> None:
    page = schema.raw_schema
    for path, methods in page["paths"].items():
        for operation in methods.values():
            assert operation["security"] == [{"token": []}], path
            assert {"401", "403"} <= operation["responses"].keys(), path
