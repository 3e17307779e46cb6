"""Comparing runs: paired by example, gated for continuous integration, ranked, summarised for reports."""
