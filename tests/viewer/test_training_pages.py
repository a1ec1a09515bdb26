"""Pages of a reward server's runs: made from its database while it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.store import Store
from tests.server.service_tools import ended, serving
from tests.support.inprocess_engine import request
from tests.support.model_new import HOST, model_new
from tests.support.recorded_run import fill, make_run
from tests.viewer.page_tree import text_of, tree, with_class
from tests.viewer.viewer_tools import listening, opened


async def test_a_page_follows_a_training_run_and_says_what_has_no_gradient(tmp_path: Path) -> None:
    fields = {"run_id": "grpo/1", "group_id": "a"}
    async with serving(tmp_path) as service:
        await ended(service, request("1", policy_version=1, **fields), request("2 WRONG", policy_version=1, **fields))
        with Store.open(tmp_path / "kernelforge.db") as store:
            fill(store, make_run())
        async with opened(tmp_path) as viewer, listening(viewer.client) as next_one:
            await next_one("changed")
            page = (await viewer.client.get("/training.html")).text
            assert text_of(*tree(page).iter("h1")) == "Training grpo/1"
            [lead] = with_class(page, "lead")
            assert "2 jobs ended, 2 with a score" in text_of(lead)
            assert "Of 1 groups 0 have equal rewards throughout" in text_of(lead)
            assert "core/gelu" in page
            await ended(service, request("3", run_id="other"))
            await next_one("changed")
            listed = (await viewer.client.get("/training.html")).text
            links = [link.get("href") for link in tree(listed).iter("a")]
            [own] = [link for link in links if link is not None and link.startswith("training/grpo-1-")]
            assert (await viewer.client.get(f"/{own}")).status_code == 200
            assert 'href="training.html"' in (await viewer.client.get("/runs/r1/index.html")).text.replace("../", "")


@pytest.mark.slow
async def test_a_folder_with_jobs_alone_has_their_pages_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "jobs") as service:
        checked = HOST.replace("    int n", '    TORCH_CHECK(x.is_cuda(), "<b>no GPU");\n    int n')
        for number in (2, 3):
            await ended(service, request(f"ALIKE {number}", run_id="grpo"))
        await ended(service, request("1", run_id="grpo").model_copy(update={"completion": model_new(host=checked)}))
        with Store.open(tmp_path / "none.db") as store:
            async with opened(tmp_path / "jobs", store=store) as viewer:
                front = (await viewer.client.get("/")).text
                assert text_of(*tree(front).iter("h1")) == "Training grpo"
                assert "live.html" not in front
                assert "1 share the evaluation of an equal candidate" in text_of(tree(front))
                rows = [text_of(row) for row in tree(front).iter("tr")]
                assert any("converted" in row for row in rows)
                assert any("TORCH_CHECK" in row and "left out" in row for row in rows), rows
                assert (await viewer.client.get("/live.html")).status_code != 200
