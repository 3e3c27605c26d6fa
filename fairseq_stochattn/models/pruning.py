"""fairseq's flags ``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep``.

A model is built with some layers of a full model and loads the checkpoint of the full model. Its
outputs are those of the full model with the other layers skipped, as LayerDrop skips them in
training (Fan et al. 2020). fairseq's own pruning is not used: if only layers of the encoder are
chosen, it loses the decoder. It also removes the flags from the configuration; here they stay, so
that a pruned model that was trained further can be loaded again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from torch import Tensor, nn

from ..compat import UsageError, exit_on_bad_input
from ..core.pruning import KeptLayers, keep_modules
from ..core.selection import parse_layers

PARTS = {"encoder": TransformerEncoderBase, "decoder": TransformerDecoderBase}


def take_kept_layers(args: Namespace, pretraining: bool = False) -> dict[str, KeptLayers]:
    """Return the layers to keep of the parts "encoder" and "decoder", for parts that are pruned.

    In ``args``, the number of layers becomes that of the pruned model, and the flag becomes None.
    """
    kept = {}
    for part in PARTS:
        spec = getattr(args, f"{part}_layers_to_keep", None)
        if spec is None or spec == "":
            continue
        flag = f"--{part}-layers-to-keep"
        if pretraining:
            raise UsageError(
                f"{flag} cannot be used with --task electra: the generator has all layers; prune "
                "the model in fine-tuning or evaluation"
            )
        total = getattr(args, f"{part}_layers")
        with exit_on_bad_input():
            numbers = parse_layers(str(spec), total, part, flag)
        kept[part] = KeptLayers(tuple(numbers), total)
        setattr(args, f"{part}_layers", len(numbers))
        setattr(args, f"{part}_layers_to_keep", None)
    return kept


class PrunesLayers:
    """Mixin for model classes: loads checkpoints of the full model, or of the pruned one."""

    kept_layers: Mapping[str, KeptLayers] = MappingProxyType({})  # of the parts that are pruned

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Namespace | None = None,
    ) -> Any:
        # fairseq prunes if it receives a configuration, and removes the flags from it.
        return super().load_state_dict(self.pruned(state_dict), strict)

    def pruned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the state without the layers that this model lacks."""
        for name, module in self.named_modules():
            kept = self.kept_layers.get(part_of(module))
            if kept is not None:
                state = keep_modules(state, f"{name}.layers.", kept)
        return state


def part_of(module: nn.Module) -> str | None:
    """Return "encoder" or "decoder" for an encoder or decoder of a Transformer, else None."""
    return next((part for part, cls in PARTS.items() if isinstance(module, cls)), None)
