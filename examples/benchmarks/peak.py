"""Peak memory of a training step, measured in a separate process."""

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
    """Return the peak bytes of model, optimizer and two steps, without those of the libraries."""
    # Freed large blocks return to the system at once, so that the peak counts only used memory.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(data), str(length), json.dumps(flags)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(flags)} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def resident_bytes(field: str) -> float:
    """Return the bytes of this process in memory: ``VmRSS`` now, ``VmHWM`` at the peak (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024.0 * int(re.search(rf"{field}:\s+(\d+) kB", status).group(1))


def main(data: str, length: str, flags: str) -> None:
    """Print the peak memory; runs in the separate process."""
    import torch
    from workload import make_trainer, training_step

    warnings.simplefilter("ignore")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which importing may have set
    before = resident_bytes("VmRSS")
    step = training_step(make_trainer(Path(data), json.loads(flags)), int(length))
    for _ in range(STEPS):
        step()
    if torch.cuda.is_available():
        print(torch.cuda.max_memory_allocated())
    else:
        print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
