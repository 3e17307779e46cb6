"""Judges measured: labels of people, agreement, one judge against another, and audits."""
