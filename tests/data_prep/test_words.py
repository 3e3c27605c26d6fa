"""``--subwords words``: words separated from punctuation, for word vectors."""

from __future__ import annotations

from steps import subwords


def test_punctuation_is_separated_and_not_escaped() -> None:
    lines = ["The food was amazing, and cheap!", "it's R&D <b>", "  already   tokenised . "]
    found = subwords.applier("words", None)(lines)
    assert found[0] == "The food was amazing , and cheap !"
    assert "&amp;" not in found[1]
    assert found[1].split()[:2] == ["it", "'s"]
    assert found[2] == "already tokenised ."


def test_words_have_no_model_and_no_fixed_vocabulary() -> None:
    for kind in subwords.WHOLE_WORDS:
        assert subwords.model_name(kind) is None
        assert subwords.vocabulary(kind, None) is None
    assert subwords.model_name("spm-bpe") == "spm.model"
