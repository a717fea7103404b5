"""default_lengths: the lengths at which a model is measured by default."""

from __future__ import annotations

__all__ = ["default_lengths"]

_GPU_LENGTHS = tuple(256 << i for i in range(10))  # 256 to 131,072
_CPU_PROMPT = (128, 512)
_CPU_CONTEXT = (16, 512)


def default_lengths(backend: str, longest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of prompts, and tokens before decoding: ten from 256 to 128K on a GPU, two on a CPU.

    Parameters
    ----------
    backend : str
        The backend that runs the model.
    longest : int
        Maximum tokens of a prompt or context; longer lengths are left out.
    """
    on_gpu = backend in ("metal", "cuda")
    prompt, context = (_GPU_LENGTHS, _GPU_LENGTHS) if on_gpu else (_CPU_PROMPT, _CPU_CONTEXT)
    return tuple(n for n in prompt if n <= longest), tuple(n for n in context if n <= longest)
