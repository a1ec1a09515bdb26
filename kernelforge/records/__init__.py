"""The records that everything else passes around. Plain data, validated, frozen, JSON both ways."""

from kernelforge.records.attempt import AgentName, Attempt, Finding, Message, Operator, Reward, TuneTrial
from kernelforge.records.base import Record, content_hash, first_fault
from kernelforge.records.build import Build, Diagnostic, KernelFacts
from kernelforge.records.candidate import Candidate
from kernelforge.records.evaluation import (
    UNCOMPARED,
    Comparison,
    Correctness,
    Evaluation,
    Fingerprint,
    Performance,
    SizeCheck,
    Stage,
    Verdict,
    evaluation_key,
    outcome_words,
)
from kernelforge.records.generator import InputGenerator
from kernelforge.records.graph import Graph, Node
from kernelforge.records.lesson import Lesson
from kernelforge.records.profile import KernelProfile, MemoryHotSpot, Metric, Origin, Profile, Roofline
from kernelforge.records.run import Budget, Limits, LLMSettings, MeasureSettings, Run, RunConfig, RunState
from kernelforge.records.task import (
    DRAWN_SIZE,
    DType,
    Size,
    SizeFacts,
    Task,
    TaskFacts,
    TaskPolicy,
    TensorSpec,
    WeightSpec,
)
from kernelforge.records.timing import Clocks, HostClock, Ratio, SideTimes, Timing
from kernelforge.records.usage import Price, Usage

__all__ = [
    "DRAWN_SIZE",
    "UNCOMPARED",
    "AgentName",
    "Attempt",
    "Budget",
    "Build",
    "Candidate",
    "Clocks",
    "Comparison",
    "Correctness",
    "DType",
    "Diagnostic",
    "Evaluation",
    "Finding",
    "Fingerprint",
    "Graph",
    "HostClock",
    "InputGenerator",
    "KernelFacts",
    "KernelProfile",
    "LLMSettings",
    "Lesson",
    "Limits",
    "MeasureSettings",
    "MemoryHotSpot",
    "Message",
    "Metric",
    "Node",
    "Operator",
    "Origin",
    "Performance",
    "Price",
    "Profile",
    "Ratio",
    "Record",
    "Reward",
    "Roofline",
    "Run",
    "RunConfig",
    "RunState",
    "SideTimes",
    "Size",
    "SizeCheck",
    "SizeFacts",
    "Stage",
    "Task",
    "TaskFacts",
    "TaskPolicy",
    "TensorSpec",
    "Timing",
    "TuneTrial",
    "Usage",
    "Verdict",
    "WeightSpec",
    "content_hash",
    "evaluation_key",
    "first_fault",
    "outcome_words",
]
