"""The trace formats that karat reads, one module for each.

A format module has a `name`, a `detect` and a `read`; `karat.traces.detection` defines the order of trial.
"""
