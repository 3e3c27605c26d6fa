"""Folders, Trainer, generation and repulsion with models of transformers."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import fairseq_stochattn as sa
import huggingface_zoo as zoo
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.heads import find_heads

pytestmark = pytest.mark.usefixtures("transformers")


@pytest.mark.parametrize("family", ["bert", "albert", "bart", "t5", "deberta", "gpt2"])
def test_save_and_load_give_the_same_samples(
    family: str, tmp_path: Path, transformers: ModuleType
) -> None:
    plain = zoo.build(family)
    batch = zoo.batch(family)
    model = sa.convert(plain, [sa.BABN(sigma=0.0, noise="full"), sa.Alignment("ct")], layers=[0])
    for name, parameter in model.named_parameters():
        if "stochattn" in name:
            parameter.data.add_(0.1)
    sa.save_pretrained(model, tmp_path / "saved")
    loaded = sa.load_pretrained(tmp_path / "saved")
    found = []
    for one in (model, loaded):
        torch.manual_seed(2)
        found.append(sa.sample(one, 3, **batch).outputs)
    assert torch.equal(*found)
    read = type(model).from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    sa.revert(model)
    assert torch.equal(read(**batch).logits, model(**batch).logits)
    assert "stochattn" not in (tmp_path / "saved" / "config.json").read_text()


def damage_json(folder: Path, **changes: Any) -> None:
    path = folder / "stochattn.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES = {
    "did not write it": lambda x: (x / "stochattn.json").unlink(),
    "is not JSON": lambda x: (x / "stochattn.json").write_text("{"),
    "format is not 1": lambda x: damage_json(x, format=2),
    "names no methods": lambda x: damage_json(x, methods=[]),
    "does not exist": lambda x: damage_json(x, methods=[{"method": "os"}]),
    "rho": lambda x: damage_json(x, methods=[{"method": "bam", "settings": {"rho": 1}}]),
    "no decoder attention": lambda x: damage_json(x, sites="decoder"),
    "stochattn.safetensors cannot be read": lambda x: (x / "stochattn.safetensors").write_bytes(
        b"\x08\x00\x00"
    ),
    "cannot be loaded": lambda x: (x / "model.safetensors").write_bytes(b"damaged"),
    "no model class": lambda x: (x / "config.json").write_text('{"architectures": ["os"]}'),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_or_foreign_folder_is_one_line(message: str, tmp_path: Path) -> None:
    sa.save_pretrained(sa.convert(zoo.build("bert"), sa.BAM()), tmp_path / "saved")
    DAMAGES[message](tmp_path / "saved")
    with pytest.raises(InputError, match=message) as caught:
        sa.load_pretrained(tmp_path / "saved")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gpt2", "bart", "llama"])
def test_generation_has_a_spread_per_token(family: str) -> None:
    """Under the mean attention, scores are those of generation; after the end there is nothing."""
    model = sa.convert(zoo.build(family), sa.BAM(k=5.0))
    inputs = {k: x for k, x in zoo.batch(family).items() if k != "labels"}
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2}
    torch.manual_seed(0)
    found = sa.generate(model, 8, **inputs, **options)
    assert torch.equal(found.sequences, model.generate(**inputs, **options))
    assert found.spread.shape == found.tokens.shape == found.mean.shape
    assert (found.spread[found.real] > 0).all()
    assert (found.spread[~found.real] == 0).all()
    sa.revert(model)
    sa.convert(model, sa.BAM(k=1e4))  # nearly no noise: the probabilities of greedy search
    greedy = model.generate(
        **inputs, max_new_tokens=4, do_sample=False, num_beams=1,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    scored = sa.generate(model, 2, **inputs, max_new_tokens=4, do_sample=False, num_beams=1)
    probabilities = torch.stack(greedy.scores, dim=1).softmax(dim=-1)  # (B, N, V)
    expected = probabilities.gather(2, scored.tokens[:, :, None]).squeeze(2) * scored.real
    assert (scored.mean - expected).abs().max() < 2e-3


class Rows(torch.utils.data.Dataset):
    """Sentences of three tokens; the label is whether the second token is even."""

    def __init__(self, count: int = 32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(4, zoo.VOCABULARY, (count, 5), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[row], "labels": self.ids[row, 1] % 2}


def trainer(transformers: ModuleType, model: Any, folder: Path, **attributes: Any) -> Any:
    class Trainer(sa.TrainerMixin, transformers.Trainer):
        pass

    for name, value in attributes.items():
        setattr(Trainer, name, value)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8, logging_steps=2,
        learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(16))


def test_trainer_adds_losses_steps_meters_and_samples(
    transformers: ModuleType, tmp_path: Path
) -> None:
    model = sa.convert(
        zoo.build("bert"), [sa.BABN(kl_weight=0.5, kl_anneal_updates=2), sa.ASA(tau=0.3)]
    )
    before = {name: x.clone() for name, x in model.state_dict().items()}
    training = trainer(transformers, model, tmp_path, eval_samples=4, meter_interval=1)
    training.train()
    logs = [entry for entry in training.state.log_history if "loss" in entry]
    assert {"kl", "kl_weight", "masked_share", "divergence"} <= logs[0].keys()
    assert logs[0]["kl_weight"] < logs[1]["kl_weight"] == 0.5
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert {name.split(".")[-1] for name in changed if ".asa." in name} >= {"b"}
    assert any(".babn." in name for name in changed)
    first = training.predict(Rows(16)).predictions
    assert abs(torch.tensor(first).exp().sum(dim=-1) - 1).max() < 1e-5
    assert (first != training.predict(Rows(16)).predictions).any(), "samples differ"


def test_trainer_adds_the_weighted_losses_to_the_loss(
    transformers: ModuleType, tmp_path: Path
) -> None:
    model = sa.convert(zoo.build("bert", hidden_dropout_prob=0.0), sa.BAM(kl_weight=0.25))
    training = trainer(transformers, model, tmp_path)
    model.train()
    batch = {name: x for name, x in zoo.batch("bert").items()}
    torch.manual_seed(0)
    loss = training.compute_loss(model, dict(batch))
    torch.manual_seed(0)
    expected = model(**batch).loss + sa.collect_losses(model, step=0)
    assert torch.allclose(loss, expected)


def test_repulsive_optimizer_in_the_trainer(transformers: ModuleType, tmp_path: Path) -> None:
    for family in ("bert", "distilbert", "deberta_v2", "bart", "t5"):
        groups = find_heads(zoo.build(family))
        layers = 6 if family in zoo.SEQ2SEQ else 2
        assert len(groups) == layers
        assert all(set(g.parameters) == {*"qkv"} for g in groups)
    assert [g.site for g in find_heads(zoo.build("llama"))] == ["decoder", "decoder"]
    training = trainer(transformers, zoo.build("bert"), tmp_path, repulsive={"weight": 0.1})
    training.train()
    assert isinstance(training.optimizer.optimizer, sa.Repulsive)
    assert training.optimizer.optimizer.num_updates == 4


TWO_PROCESSES = """
import sys
sys.modules["torchaudio"] = None
from pathlib import Path
import torch, transformers
import fairseq_stochattn as sa
import huggingface_zoo as zoo
from test_huggingface_use import trainer
model = sa.convert(zoo.build("bert"), [sa.BABN(), sa.Alignment("gan"), sa.ASA()])
training = trainer(transformers, model, Path(sys.argv[1]), repulsive={})
training.train()
assert training.args.world_size == 2
total = sum(float(p.double().sum()) for p in model.parameters())
print("TOTAL", total, flush=True)
"""


def test_two_processes_on_the_cpu_stay_equal(tmp_path: Path) -> None:
    """accelerate with gloo: after four updates, both ranks have the same parameters."""
    (tmp_path / "run.py").write_text(TWO_PROCESSES)
    tests = Path(zoo.__file__).parent
    path = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests / 'integrations')!r}]\n"
    (tmp_path / "run.py").write_text(path + TWO_PROCESSES)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "--master-port", "0", "--standalone", str(tmp_path / "run.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    totals = [float(x.split()[1]) for x in done.stdout.splitlines() if x.startswith("TOTAL")]
    assert len(totals) == 2
    assert math.isfinite(totals[0])
    assert totals[0] == totals[1]


def test_the_code_of_the_tutorial_runs() -> None:
    page = (Path(zoo.__file__).parents[1] / "docs" / "huggingface.md").read_text()
    names: dict[str, Any] = {"__name__": "tutorial"}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "docs/huggingface.md", "exec"), names)
