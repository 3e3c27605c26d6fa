"""Peak memory of a training step, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

STEPS = 2


def peak_memory(data: Path, flags: list[str], length: int) -> float:
    """Bytes at the peak of two steps beyond what the libraries take: model, optimizer, step."""
    # Large blocks go back to the system as they are freed: the peak is one of live memory.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(data), str(length), json.dumps(flags)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"no peak memory of {' '.join(flags)}:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def resident(what: str) -> float:
    """Bytes of this process in memory: ``VmRSS`` now, ``VmHWM`` at the peak (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(re.search(rf"{what}:\s+(\d+) kB", status).group(1))


def main(data: str, length: str, flags: str) -> None:
    import torch
    from workload import make_trainer, training_step

    warnings.simplefilter("ignore")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak that the imports had
    before = resident("VmRSS")
    step = training_step(make_trainer(Path(data), json.loads(flags)), int(length))
    for _ in range(STEPS):
        step()
    if torch.cuda.is_available():
        print(torch.cuda.max_memory_allocated())
    else:
        print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
