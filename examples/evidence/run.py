"""Run the missing experiments of a suite: train, evaluate, write one JSON file per run.

    python examples/evidence/run.py SUITE [--methods …] [--seeds …] [--jobs N] [--budget MINUTES]

Results that exist are skipped, and interrupted trainings go on where they stopped. Several
processes of this script (runners) may work at the same time. Seeds of 101 and above are for
choosing settings: they are evaluated on validation data and their results are in the folder tuning.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
sys.path[:0] = [str(HERE), str(ROOT)]

import torch  # noqa: E402
from measuring import evaluation_flags, measure, trained_folders  # noqa: E402
from processes import Clock, CommandError, OutOfTimeError, lock  # noqa: E402
from suite import SUITES, Run, Suite, member_seeds, read_suite, runs_of, suite_names  # noqa: E402
from training import Workshop, training_flags  # noqa: E402

from fairseq_stochattn.commands.command import OneLineParser, command  # noqa: E402
from fairseq_stochattn.core.errors import InputError  # noqa: E402

_print = threading.Lock()


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing; the exit status is 1 if a run failed."""
    args = build_parser().parse_args(argv)
    names = suite_names(args.suites) if args.suite == ["all"] else args.suite
    suites = [read_suite(name, args.suites) for name in names]
    clock = Clock(args.budget)
    shops = [workshop(suite, args, clock) for suite in suites]
    jobs = [
        (shop, run)
        for shop in shops
        for run in runs_of(shop.suite, args.methods, args.seeds, args.tasks)
        if not is_done(shop, run, args.results)
    ]
    if args.dry_run:
        print_plan(jobs)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: clock.stop())
    with ThreadPoolExecutor(args.jobs) as pool:
        counts = list(pool.map(lambda job: attempt(*job, args), jobs))
    done, failed, left = (counts.count(word) for word in ("done", "failed", "left"))
    say(f"{done} done, {failed} failed, {left} left for another call")
    if done and args.results == RESULTS:
        write_pages()  # a test fails if a page does not agree with the results
    return 1 if failed else 0


def write_pages() -> None:
    """Write docs/evidence and the table in README.md for the results that exist now."""
    import table  # imports matplotlib, which a dry run does not need

    with redirect_stdout(io.StringIO()):
        table.main([])
    say("docs/evidence and the table in README.md are written: commit them with the results")


def attempt(shop: Workshop, run: Run, args: argparse.Namespace) -> str:
    """Do one run unless another runner is doing it; return "done", "failed" or "left"."""
    result = run.result(args.results)
    try:
        shop.clock.check()
        with lock(shop.work / "locks" / f"{run}.lock", wait=False) as free:
            if not free:
                say(f"{run}: another runner does it")
                return "left"
            if result.exists():  # made by another runner in the meantime
                return "done"
            started = time.monotonic()
            if args.train_only:
                trained_folders(shop, run)
                return "left"
            measures = measure(shop, run, result)["measures"]
            shown = [f"{k} {v:.4g}" for k, v in list(measures.items())[:4]]
            minutes = (time.monotonic() - started) / 60
            say(f"{run}: done in {minutes:.1f} minutes, {', '.join(shown)}")
            return "done"
    except OutOfTimeError:
        return "left"
    except (CommandError, InputError, OSError) as error:
        say(f"{run}: FAILED: {error}")
        return "failed"


def is_done(shop: Workshop, run: Run, results: Path) -> bool:
    """Whether the result exists; warns if the suite has changed its settings since."""
    path = run.result(results)
    if not path.is_file():
        return False
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged: delete it to run it again") from None
    trained = run._replace(method=shop.suite.methods[run.method].training)
    now = [list(training_flags(shop, trained)), list(evaluation_flags(shop, run))]
    if [settings.get("train"), settings.get("evaluate")] != now:
        say(f"{path} was made with other settings than the suite has now: delete it to run again")
    return True


def print_plan(jobs: Sequence[tuple[Workshop, Run]]) -> None:
    """Print what is missing and about how long it takes on one core."""
    minutes, trainings = 0.0, set()
    for shop, run in jobs:
        method = shop.suite.methods[run.method]
        for seed in member_seeds(shop.suite, method, run.seed):
            training = run._replace(method=method.training, seed=seed)
            name = f"{method.training}-seed{seed}"
            made = (shop.folder(run.task) / name / "model.pt").is_file()
            if training not in trainings and not made:
                trainings.add(training)
                minutes += shop.suite.minutes
        print(f"{run.suite}/{run}")
    print(f"{len(jobs)} results and {len(trainings)} trainings are missing, ", end="")
    print(f"about {minutes / 60:.1f} hours on one core")


def workshop(suite: Suite, args: argparse.Namespace, clock: Clock) -> Workshop:
    device = () if torch.cuda.is_available() else ("--cpu",)
    return Workshop(suite, args.work.absolute() / suite.name, args.corpora, clock, say, device)


def say(text: str) -> None:
    """Print one line with the time."""
    with _print:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("suite", nargs="+", metavar="SUITE", help=f"all, or some of {', '.join(suite_names())}")
    add("--methods", nargs="+", metavar="NAME", help="methods of the suite (default: all)")
    add("--tasks", nargs="+", metavar="NAME", help="tasks of the suite (default: all)")
    add("--seeds", nargs="+", type=int, metavar="N", help="seeds (default: those of the suite)")
    add("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    add("--budget", type=float, metavar="MINUTES", help="stop after this time; what was begun "
        "goes on in the next call (default: no limit)")  # fmt: skip
    add("--train-only", action="store_true", help="train what is missing, evaluate in a later call")
    add("--dry-run", action="store_true", help="only say what is missing and how long it takes")
    add("--results", type=Path, default=RESULTS, metavar="DIR",
        help="folder of the results (default: examples/evidence/results)")  # fmt: skip
    add("--suites", type=Path, default=SUITES, metavar="DIR",
        help="folder of the suites (default: examples/evidence/suites)")  # fmt: skip
    add("--work", type=Path, default=ROOT / "runs" / "evidence", metavar="DIR",
        help="folder of data, models and logs (default: runs/evidence)")  # fmt: skip
    add("--corpora", type=Path, metavar="DIR",
        default=Path(os.environ.get("STOCHATTN_CORPORA", ROOT.parent / "shared" / "data")),
        help="folder of the corpora (default: $STOCHATTN_CORPORA or ../shared/data)")  # fmt: skip
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
