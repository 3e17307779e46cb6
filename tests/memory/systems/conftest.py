"""Dialogues for the tests of memory systems."""

from __future__ import annotations

import pytest

from karat.memory import Turn, memory_systems


@pytest.fixture
def drive(tmp_path):
    """Make a system and lead it through sessions of `(speaker, text, time)`."""

    def drive(name, *sessions, **parameters):
        system = memory_systems.get(name)(**parameters)
        directory = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        system.reset(directory)
        number = 0
        for index, session in enumerate(sessions):
            for speaker, text, time in session:
                turn = Turn(
                    turn_id=f"t{number}", speaker=speaker, text=text, time=time, session_id=f"S{index:02}"
                )
                system.ingest_turn(turn)
                number += 1
            system.end_session(f"S{index:02}")
        return system

    return drive
