"""Adapters that bring the methods into models of other frameworks, and the public functions."""
