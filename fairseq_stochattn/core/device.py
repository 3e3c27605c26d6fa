"""Whether the program may look at the values of a tensor without waiting for a GPU."""

from __future__ import annotations

from torch import Tensor


def reading_is_free(x: Tensor) -> bool:
    """Whether values of x can be read at no cost: on a CPU.

    On a GPU, a shape or a branch that depends on a value makes the program wait until the device
    has finished all work before it. There, code does without, at the price of more arithmetic.
    """
    return x.device.type == "cpu"
