"""Attacks on text classifiers: changes of words that change a prediction. Needs no fairseq."""
