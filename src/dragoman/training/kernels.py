"""Which kernels a worker uses: fused, compiled or plain ones."""

import importlib.util
import os
import shutil
from dataclasses import dataclass
from typing import Literal

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import Config, shape_of
from dragoman.errors import UserError

SLOTS_STEP = 64  # The kernels work on blocks of slots.
NARROWEST_HEAD = 16
OLDEST_CAPABILITY = (8, 0)  # The first with bfloat16.
OLDEST_COMPILED = (7, 0)  # The first that PyTorch's compiler makes kernels for.
C_COMPILERS = "gcc", "clang"  # Triton looks for these; every kernel's launcher is compiled.


@dataclass(frozen=True)
class KernelChoice:
    """Which kernels make the steps, and why."""

    kind: Literal["fused", "compiled", "plain"]
    reason: str


def choose_kernels(config: Config, workers: Workers) -> KernelChoice:
    """Choose the kernels as the config says; left to us, the fastest that run here."""
    asked = config.training.kernels
    if asked == "plain":
        return KernelChoice("plain", "set by training.kernels")
    problems = {"fused": fused_problem, "compiled": compiled_problem}
    if asked != "auto":
        if problem := problems[asked](config, workers):
            raise UserError(f'training.kernels = "{asked}", but {problem}')
        return KernelChoice(asked, "set by training.kernels")
    if not (of_fused := fused_problem(config, workers)):
        return KernelChoice("fused", "the fastest")
    if not (of_compiled := compiled_problem(config, workers)):
        return KernelChoice("compiled", f"not fused, because {of_fused}")
    return KernelChoice(
        "plain", f"not fused, because {of_fused}; not compiled, because {of_compiled}"
    )


def refuse_mixed_kernels(own: KernelChoice, workers: Workers) -> None:
    """Refuse workers with different kernels: they lay out weights and sum gradients differently."""
    everyone = [KernelChoice(*one) for one in workers.gather_json([own.kind, own.reason])]
    first = everyone[0]
    for rank, other in enumerate(everyone):
        if other.kind != first.kind:
            common = "plain" if "plain" in (other.kind, first.kind) else "compiled"
            raise UserError(
                f"{workers.hosts[rank]} (worker {rank}) would use {other.kind} kernels "
                f"({other.reason}), {workers.hosts[0]} (worker 0) {first.kind} ones "
                f'({first.reason}): make them alike, or set training.kernels = "{common}"'
            )


def fused_problem(config: Config, workers: Workers) -> str:
    """Say why the fused kernels cannot train this model here; empty if they can."""
    shape, row_tokens = shape_of(config.model), config.batches.row_tokens
    head_width = shape.d_model // shape.heads
    if config.training.precision == "float32":
        return 'training.precision = "float32": they compute in bfloat16 or float16'
    if problem := _recording_problem(config, workers):
        return problem
    if row_tokens % SLOTS_STEP:
        return f"batches.row_tokens = {row_tokens} is not a multiple of {SLOTS_STEP}"
    if head_width < NARROWEST_HEAD or head_width & (head_width - 1):
        return (
            f"model.d_model / heads = {head_width} is not a power of two of at least "
            f"{NARROWEST_HEAD}"
        )
    if workers.device.type != "cuda":
        return "there is no GPU"
    if torch.version.hip:
        return "they were made for NVIDIA GPUs"
    if torch.cuda.get_device_capability(workers.device) < OLDEST_CAPABILITY:
        return f"{torch.cuda.get_device_name(workers.device)} is too old for them"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return ""


def compiled_problem(config: Config, workers: Workers) -> str:
    """Say why PyTorch's compiler cannot make the kernels here; empty if it can."""
    if problem := _recording_problem(config, workers):
        return problem
    if workers.device.type != "cuda":
        return "there is no GPU"
    name = torch.cuda.get_device_name(workers.device)
    capability = torch.cuda.get_device_capability(workers.device)
    if capability < OLDEST_COMPILED:
        return f"{name} is too old for PyTorch's compiler"
    if capability < OLDEST_CAPABILITY and config.training.precision == "bfloat16":
        return f'{name} does not support bfloat16: set training.precision = "float16"'
    if capability < OLDEST_CAPABILITY and config.optimizer.kind == "muon":
        return f'{name} does not support bfloat16, which optimizer.kind = "muon" needs here'
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if "CC" not in os.environ and not any(map(shutil.which, C_COMPILERS)):
        return f"there is no C compiler ({' or '.join(C_COMPILERS)})"
    return ""


def _recording_problem(config: Config, workers: Workers) -> str:
    """Say why no step of this run can be recorded once and replayed; empty if it can."""
    if config.training.freeze_embeddings:
        return "training.freeze_embeddings = true: they update all weights"
    if config.distributed.compression == "powersgd" and workers.count > 1:
        return 'distributed.compression = "powersgd": they sum gradients in 32 or 16 bits'
    return ""
