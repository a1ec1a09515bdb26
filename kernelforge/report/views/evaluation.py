"""One evaluation by itself: what ``kernelforge eval`` prints."""

from __future__ import annotations

from kernelforge.records import Evaluation, Profile
from kernelforge.report.views.base import View


class EvaluationView(View):
    """An evaluation and the profile of a correct candidate."""

    evaluation: Evaluation
    profile: Profile | None


def evaluation_view(evaluation: Evaluation, profile: Profile | None) -> EvaluationView:
    """View of an evaluation."""
    return EvaluationView(evaluation=evaluation, profile=profile)
