"""AttendOut (Wu et al. 2021): a learned attention dropout.

generator.py decides which (query, key) pairs to drop, attention.py drops them, training_loop.py
trains the generator.
"""

from .attention import AttendOut, AttendOutAttention

__all__ = ["AttendOut", "AttendOutAttention"]
