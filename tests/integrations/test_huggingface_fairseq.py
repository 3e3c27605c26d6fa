"""A converted model of transformers computes what the imported fairseq model computes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from fairseq import checkpoint_utils
from torch import Tensor, nn

import fairseq_stochattn as sa
import hub
from fairseq_stochattn.core.losses import collecting_losses, take_losses
from fairseq_stochattn.core.method import AttentionMethod
from fairseq_stochattn.core.stack import AttentionStack
from fairseq_stochattn.pretrained.import_huggingface import import_folder
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary


def stack_of(model: nn.Module) -> AttentionStack:
    return next(m for m in model.modules() if isinstance(m, AttentionStack))


def kl_of(model: nn.Module) -> Tensor:
    return torch.stack([loss.value for name, loss in take_losses(model) if name == "kl"])


@torch.no_grad()
def test_minilm_with_babn_equals_roberta_babn(transformers: ModuleType, tmp_path: Path) -> None:
    """The same parameters and noise give the same outputs, samples of them, and KL of layers."""
    source = hub.minilm()
    import_folder(source, tmp_path / "out", "roberta_babn")
    path = str(tmp_path / "out" / "model.pt")
    ours = checkpoint_utils.load_model_ensemble([path])[0][0].eval()
    theirs = transformers.AutoModel.from_pretrained(source).eval()
    settings = stack_of(ours).methods[0].settings
    sa.convert(theirs, settings)
    generator = torch.Generator().manual_seed(0)
    for module in (stack_of(ours).shared, *stack_of(ours).methods):
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)
    mine, other = stack_of(ours), stack_of(theirs)
    other.shared.load_state_dict(mine.shared.state_dict())
    for found, expected in zip(other.methods, mine.methods, strict=True):
        found.load_state_dict(expected.state_dict())
    batch = hub.encode(source, hub.SENTENCES)
    ids = read_vocabulary(source, theirs.config.vocab_size).token_ids
    rows = torch.empty(len(ids), dtype=torch.long)
    rows[ids] = torch.arange(len(ids))
    tokens, valid = rows[batch["input_ids"]], batch["attention_mask"].bool()
    assert not valid.all()
    outputs, kls = [], []
    with sa.sampled_attention([ours]), sa.sampled_attention([theirs]), collecting_losses():
        torch.manual_seed(7)
        outputs.append(ours(tokens, features_only=True)[0][valid])
        kls.append(kl_of(ours))
        torch.manual_seed(7)
        outputs.append(theirs(**batch).last_hidden_state[valid])
        kls.append(kl_of(theirs))
        other_noise = theirs(**batch).last_hidden_state[valid]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5
    assert (other_noise - outputs[1]).abs().max() > 1e-3
    assert kls[0].numel() == 6
    assert ((kls[0] - kls[1]) / kls[0].abs().clamp(min=1)).abs().max() < 1e-5


@torch.no_grad()
def test_identity_on_minilm(transformers: ModuleType) -> None:
    source = hub.minilm()
    model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()
    batch = hub.encode(source, hub.SENTENCES)
    valid = batch["attention_mask"].bool()
    plain = model(**batch).last_hidden_state[valid]
    sa.convert(model, sa.Deterministic())
    assert (model(**batch).last_hidden_state[valid] - plain).abs().max() < 1e-6
    assert any(isinstance(m, AttentionMethod) for m in model.modules())
