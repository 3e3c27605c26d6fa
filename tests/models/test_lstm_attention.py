"""Additive attention of LSTM decoders: its equation, the contract, its flags and its preset."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import runner
import sizes
import test_contract as contract
import zoo
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.models.lstm_attention import AdditiveAttentionLayer
from fairseq_stochattn.pretrained.export_fairseq import export

SOURCES, TARGETS = zoo.sentences(7, 4), zoo.sentences(5, 3, seed=1)
ADDITIVE = {"lstm_attention": "additive", "lstm_attention_dim": 6}
FLAGS = ("--arch", "lstm_deterministic", *sizes.LSTM, "--lstm-attention", "additive")
CLAUSES = (
    contract.test_batch_independence,
    contract.test_padding_side,
    contract.test_causality,
    contract.test_incremental_equals_full,
    contract.test_extremes_stay_finite,
)


def test_weights_and_output_equal_the_equations() -> None:
    """softmax over h of vᵀ tanh(W_q s + W_k h), in double precision, with padding."""
    model = zoo.build("lstm_deterministic", **ADDITIVE).double().eval()
    layer = model.decoder.attention
    assert isinstance(layer, AdditiveAttentionLayer)
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(2, 16, generator=generator, dtype=torch.float64)
    hidden = torch.randn(5, 2, 32, generator=generator, dtype=torch.float64)
    padding = torch.zeros(5, 2, dtype=torch.bool)
    padding[3:, 1] = True
    out, weights = layer(state, hidden, padding)
    w_q, w_k, v = layer.input_proj.weight, layer.key_proj.weight, layer.score_proj.weight[0]
    for sentence, length in enumerate((5, 3)):
        s = state[sentence]
        scores = [v @ torch.tanh(w_q @ s + w_k @ hidden[t, sentence]) for t in range(length)]
        expected = torch.stack(scores).softmax(0)
        torch.testing.assert_close(weights[:length, sentence], expected)
        attended = sum(w * hidden[t, sentence] for t, w in enumerate(expected))
        expected = torch.tanh(layer.output_proj.weight @ torch.cat([attended, s]))
        torch.testing.assert_close(out[sentence], expected)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize("method", [m for b, m in zoo.all_pairs() if b == "lstm"])
def test_the_contract_holds(clause, method: str, monkeypatch) -> None:
    monkeypatch.setitem(zoo.TINY, "lstm", zoo.TINY["lstm"] | ADDITIVE)
    assert isinstance(zoo.build(f"lstm_{method}").decoder.attention, AdditiveAttentionLayer)
    clause("lstm", method)


def test_keys_are_computed_once_per_forward_pass() -> None:
    model = zoo.build("lstm_babn", **ADDITIVE).train()
    calls: list[int] = []
    model.decoder.attention.key_proj.register_forward_hook(lambda *_: calls.append(1))
    for count in (1, 2):
        zoo.run(model, "lstm", SOURCES, TARGETS)
        assert len(calls) == count


def test_it_learns_translates_and_does_not_export(translation_data: Path, tmp_path: Path) -> None:
    more = ("--criterion", "label_smoothed_cross_entropy", "--max-update", 40)
    losses = runner.train(translation_data, tmp_path, *FLAGS, *more).losses()
    assert losses[-1] < 0.95 * losses[0]
    checkpoint = tmp_path / "checkpoint_last.pt"
    assert "\nH-0\t" in runner.generate(translation_data, checkpoint).text
    with pytest.raises(InputError, match="plain fairseq has no --lstm-attention additive"):
        export(checkpoint, tmp_path / "plain.pt")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lstm-attention", "dot"), "--lstm-attention dot: must be general or additive"),
        (("--lstm-attention-dim", 0), "--lstm-attention-dim 0: must be positive"),
    ],
)
def test_bad_flags_are_refused(
    flags: tuple, message: str, translation_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=message):
        runner.train(translation_data, tmp_path, *FLAGS, *flags, "--max-update", 1)


@pytest.mark.parametrize("method", ["deterministic", "bam", "babn"])
def test_the_preset_is_the_model_of_the_paper(method: str) -> None:
    """App. A; 42M parameters (Table 4), with vocabularies of 11,500 and 8,400 types."""
    task = zoo.task()
    for name, size in (("source_dictionary", 11_500), ("target_dictionary", 8_400)):
        dictionary = zoo.Dictionary()
        for number in range(size - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
        setattr(task, name, dictionary)
    arch = f"lstm_{method}_iwslt_de_en"
    args = zoo.Namespace(arch=arch, criterion="elbo")
    zoo.ARCH_CONFIG_REGISTRY[arch](args)
    model = zoo.build_model(args, task)
    assert model.encoder.lstm.num_layers == 2
    assert model.encoder.lstm.bidirectional
    assert model.encoder.hidden_size == 512
    assert [layer.hidden_size for layer in model.decoder.layers] == [768, 768]
    assert model.decoder.embed_tokens.embedding_dim == 512
    assert model.decoder.attention.sizes()["head_dim"] == 512
    assert model.decoder.dropout_out_module.p == 0.3
    assert METHODS[method].name in model.decoder.attention.attention_methods
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(42, abs=0.2)
