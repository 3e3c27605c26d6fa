"""Measures, tables and figures for trained models. Training does not need this package."""
