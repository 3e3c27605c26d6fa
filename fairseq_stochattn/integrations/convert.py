"""``convert`` puts methods into the attention of a torch model, ``revert`` takes them out again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from .. import methods  # noqa: F401  (registers all methods)
from ..core.errors import InputError
from ..core.method import METHODS, AttentionMethod
from ..core.selection import Selection
from ..core.settings import Settings
from ..core.stack import AttentionStack, build_stacks, check_order
from .huggingface import conversion as huggingface
from .torch_attention import StochasticTorchAttention, attention_sites, refuse_scripted

# With these settings, the mean of the attention is plain attention.
EXACT_BABN = ", or train with BABN(sigma=0, noise='full')"


def convert(
    model: nn.Module,
    method: Settings | Sequence[Settings],
    sites: Selection = "all",
    layers: Selection = "all",
) -> nn.Module:
    """Put one or several methods into the attention of ``model``, in place; returns the model.

    ``convert(model, BABN(), sites="encoder", layers="0,2")``. The model may be any module that
    contains ``nn.MultiheadAttention`` (``nn.TransformerEncoder``, ``nn.Transformer``, your own), or
    a ``PreTrainedModel`` of Hugging Face's transformers (docs/huggingface.md).
    Its weights are kept. In eval mode the mean of the attention is used instead of samples; it
    equals plain attention, except for ``BABN`` with ``sigma`` above 0 (which differs by about
    ``sigma``) or with ``noise="cut"``. The methods add their own parameters, so build the optimizer
    afterwards.

    ``method`` is the settings object of a method, or a list of them in the order in which they act:
    ``[BABN(rho=2.0), Alignment(distance="ct")]``.

    ``sites`` is ``all``, or some of ``encoder``, ``decoder`` and ``cross``, separated by commas
    (``"encoder,cross"``) or in a list (``["encoder", "cross"]``). ``layers`` is ``all``, ``first``,
    ``last``, or indices (``"0,2"`` or ``[0, 2]``).
    """
    refuse_scripted(model)
    if _is_converted(model):
        raise InputError("the model is converted already: call revert(model) first")
    chain = _chain(method)
    pretrained = huggingface.pretrained_models(model)
    if pretrained:
        huggingface.adopt(pretrained, model, chain, sites, layers)
        model._stochattn_choice = huggingface.Choice(chain, sites, layers)
        _add_hooks(model)
        return model
    attentions = attention_sites(model)
    if not attentions:
        raise InputError(f"{type(model).__name__} contains no nn.MultiheadAttention to convert")
    converted = [module for modules in attentions.values() for module in modules]
    try:
        for modules in attentions.values():
            for layer, module in enumerate(modules):
                StochasticTorchAttention.adopt(module, layer)
        stacks = build_stacks(chain, attentions, sites, layers)
    except BaseException:
        _release(converted)
        raise
    if "decoder" in stacks and "cross" in stacks:
        # The queries of cross attention have the padding that decoder self-attention receives.
        for module in attentions["cross"]:
            object.__setattr__(module, "query_stack", stacks["decoder"])
    for site, stack in stacks.items():
        # Registered as a child of its first layer, not of the model: an nn.Sequential would run
        # it as one more layer.
        attentions[site][0].attention_stack = stack
    reference = next(model.parameters())
    for module in converted:
        module.to(reference.device, reference.dtype).train(module.training)
    _add_hooks(model)
    return model


def revert(model: nn.Module, exact: bool = True) -> nn.Module:
    """Undo ``convert``, in place: plain attention with the trained weights; returns the model.

    In eval mode most methods compute plain attention, so reverting does not change the outputs.
    For the others (``BABN`` with ``sigma`` above 0 or ``noise="cut"``) ``revert`` raises an error;
    ``exact=False`` reverts anyway, and the outputs change a little.
    """
    if not _is_converted(model):
        raise InputError("the model is not converted: there is nothing to revert")
    for method in model.modules() if exact else ():
        if isinstance(method, AttentionMethod) and not method.is_plain_at_test(method.settings):
            raise InputError(
                f"with these settings {method.name} does not compute plain attention in eval mode, "
                "so reverting changes the outputs; call revert(model, exact=False) to revert "
                "anyway" + EXACT_BABN * (method.name == "babn")
            )
    if huggingface.is_converted(model):
        huggingface.release(model)
        del model._stochattn_choice
    else:
        _release(list(model.modules()))
    _remove_hooks(model)
    return model


def _is_converted(model: nn.Module) -> bool:
    adopted = any(isinstance(module, StochasticTorchAttention) for module in model.modules())
    return adopted or huggingface.is_converted(model)


def _release(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if isinstance(module, StochasticTorchAttention):
            module.release()


def _chain(method: Settings | Sequence[Settings]) -> dict[str, Settings]:
    chosen = list(method) if isinstance(method, (list, tuple)) else [method]
    chain: dict[str, Settings] = {}
    for settings in chosen:
        if not isinstance(settings, Settings) or settings.method not in METHODS:
            known = ", ".join(sorted(cls.Settings.__name__ for cls in METHODS.values()))
            raise InputError(
                f"{settings!r} is not a method; expected an instance of one of: {known}"
            )
        if settings.method in chain:
            raise InputError(f"the method {settings.method} is given twice")
        if METHODS[settings.method].needs_tokens:
            raise InputError(
                f"{settings.method} reads token ids, which attention modules do not receive: "
                "use it with fairseq"
            )
        chain[settings.method] = settings
    if not chain:
        raise InputError("convert needs at least one method")
    check_order([name for name in chain if not METHODS[name].passive])
    return chain


def _begin(model: nn.Module, inputs: Any) -> None:
    """Forward pre-hook of a converted model: clears the state and losses of the previous pass."""
    for module in model.modules():
        if isinstance(module, AttentionStack):
            module.clear()
    huggingface.begin(model)


def _add_hooks(model: nn.Module) -> None:
    """Clear losses and state before every forward pass, and disable torch's nested tensors.

    ``nn.TransformerEncoder`` converts padded batches to nested tensors in eval, which only its
    fused kernel can read.
    """
    model._stochattn_hook = model.register_forward_pre_hook(_begin)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module._stochattn_nested = module.use_nested_tensor
            module.use_nested_tensor = False


def _remove_hooks(model: nn.Module) -> None:
    model._stochattn_hook.remove()
    del model._stochattn_hook
    for module in model.modules():
        if hasattr(module, "_stochattn_nested"):
            module.use_nested_tensor = module._stochattn_nested
            del module._stochattn_nested
