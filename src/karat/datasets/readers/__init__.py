"""Readers of files and of the hub: each yields rows, one at a time, in bounded memory."""
