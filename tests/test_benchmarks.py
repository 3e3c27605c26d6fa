"""The benchmark itself, and a guard: no method may become much slower beside plain fairseq."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import commands

sys.path.insert(0, str(commands.ROOT / "examples" / "benchmarks"))

import cases
import modules
import peak
import scoring
import speed
import table
import timing
import workload
from timing import Ratio, paired_ratio

# Far above what is measured (README): a guard against mistakes, on a machine with others on it.
MARGIN = 1.5
GUARDED = {"freelb2": 3.0, "freelb3": 5.0, "smart": 4.0}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[speed.Bench]:
    """Fewer words and tokens than the benchmark has."""
    data = tmp_path_factory.mktemp("benchmark")
    workload.write_dictionaries(data, words=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "TOKENS_A_STEP", 256)
        yield speed.Bench(data, pairs=2)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield torch.set_num_threads(1)
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", cases.METHODS)
def test_a_step_costs_little_more_than_a_plain_one(
    method: str, bench: speed.Bench, one_thread: None
) -> None:
    """Ratios of CPU time within one process, on the narrow margin's far side."""
    bench.train(method, "shallow", 64)
    aims = [aim.train or GUARDED[method] for aim in cases.AIMS if aim.method == method]
    assert bench.rows[-1]["median"] < MARGIN * max(aims)


def test_the_ratio_is_that_of_the_work_done(one_thread: None) -> None:
    a, b = torch.randn(2, 400, 400)

    def times(count: int):
        return lambda: [torch.mm(a, b) for _ in range(count)]

    ratio = paired_ratio(times(10), times(30), pairs=9)
    assert 2 < ratio.median < 4.5
    assert ratio.low <= ratio.median <= ratio.high


def test_peak_memory_counts_the_model_its_gradient_and_adams_moments(bench: speed.Bench) -> None:
    """Four numbers a parameter at least, and not much more where the batch is small."""
    flags = cases.flags_of("transformer")
    trainer = workload.make_trainer(bench.data, flags)
    least = 16 * sum(p.numel() for p in trainer.model.parameters())
    assert least < peak.peak_memory(bench.data, flags, 4) < 2.5 * least


def test_batches_are_the_tasks_own(bench: speed.Bench) -> None:
    """Every backbone can be trained on them, real tokens and padding as said."""
    for backbone in ("roberta", "transformer_lm", "lstm"):
        trainer = workload.make_trainer(bench.data, cases.flags_of(backbone))
        batch = workload.make_batch(trainer.task, 30)
        tokens = batch["net_input"]["src_tokens"]
        assert tokens.shape == (9, 30)
        real = tokens.ne(1).sum(dim=1)
        assert real.min() >= 21
        assert real.max() == 30
        log = trainer.train_step([batch])
        assert log is not None
        assert trainer.get_num_updates() == 1


def test_the_module_alone_costs_no_more_than_the_released_one(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """3.68 times plain attention, at the same width with fewer sentences."""
    monkeypatch.setattr(modules, "BATCH", 4)
    assert 1 < modules.attention_module_ratio(pairs=3).median < 3.68


def test_gathering_and_projecting_all_are_the_same_step(
    bench: speed.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then do their ratios mean anything: loss and gradient of the three agree."""
    losses, gradients = [], []

    def compare(gathering, projecting: dict, pairs: int, warm_up: int) -> dict[str, Ratio]:
        for update in (gathering, *projecting.values()):
            update()
        return dict.fromkeys(projecting, Ratio(1.0, 1.0, 1.0, pairs, 1.0))

    def step(trainer, length: int, tokens: int):
        batch = workload.make_batch(trainer.task, 8)

        def update() -> None:
            losses.append(float(trainer.train_step([batch])["loss"]))
            tied = trainer.model.encoder.sentence_encoder.embed_tokens.weight
            gradients.append(tied.grad.clone())

        return update

    monkeypatch.setattr(modules, "paired_ratios", compare)
    monkeypatch.setattr(modules, "training_step", step)
    monkeypatch.setattr(modules, "ELECTRA_WORDS", 200)
    monkeypatch.setattr(workload, "TOKENS_A_STEP", 16)
    found = modules.electra_gathering_ratios(bench.data, pairs=1)
    assert set(found) == set(speed.GATHERING)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-3, atol=1e-5)
    assert gradients[0].abs().sum() > 0


def test_the_table_says_what_was_measured_and_what_missed(tmp_path: Path) -> None:
    row = {"part": "train", "backbone": "transformer", "at_least": False, "threads": 1}
    row.update(parameters=1.01, low=1.0, high=1.3)
    memory = {"part": "memory", "method": "ct", "aim": None, "at_least": False}
    rows = [
        {**row, "method": "gan", "length": 64, "aim": 1.12, "median": 1.118},
        {**row, "method": "ct", "length": 64, "aim": 1.20, "median": 1.25},
        {**row, "method": "ct", "length": 64, "aim": None, "median": 1.3, "threads": 2},
        {**memory, "backbone": "transformer", "length": 128, "median": 1.17},
        {**row, "method": "ct", "backbone": "shallow", "length": 64, "aim": None, "median": 1.1},
        {**memory, "backbone": "shallow", "length": 512, "median": 1.3},
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_between_markers(page, table.tables(rows))
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| `gan` | transformer, 64 | **1.12 (1.00–1.30)** | 1.12 | – | 1.24 | 1.21 |" in text
    assert "| `ct` | transformer, 64 | 1.25 (1.00–1.30), aim missed | 1.20 | 1.30 |" in text
    assert "| `ct` | as `gan` | 1.17 | 1.010 |" in text
    assert "| `ct` | – | 1.10 | – | – | – | 1.30 |" in text


def test_of_several_runs_the_table_has_the_median() -> None:
    row = {"part": "train", "method": "gan", "backbone": "transformer", "length": 64, "threads": 1}
    row.update(parameters=1.01, aim=1.12, at_least=False)
    memory = {"part": "memory", "method": "gan", "backbone": "transformer", "length": 128}
    memory.update(aim=None, at_least=False, median=1.04)
    first, second, third = (
        [{**row, "median": found, "low": 0.5, "high": 2.0}] for found in (1.10, 1.20, 1.05)
    )
    rows = table.merged([[*first, memory], second, third])
    assert rows == [{**row, "median": 1.10, "low": 1.05, "high": 1.20}, memory]
    assert table.merged([first, [{**row, "threads": 2, "median": 9.0}]])[0] == first[0]


def test_memory_is_kept_between_steps() -> None:
    """The setting is accepted where the allocator has it, and does nothing elsewhere."""
    timing.keep_memory()
    assert torch.zeros(1 << 20).sum() == 0


def test_scoring_by_commands(bench: speed.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of a few sentences: start-ups are most of both, and ours starts once."""
    monkeypatch.setattr(scoring, "SAMPLES", 2)
    monkeypatch.setattr(scoring, "BATCHES", 1)
    assert 0.2 < scoring.scoring_ratio(bench.data, pairs=1).median < 1.2
