"""How an interrupted process ends: soon, whatever is still running in it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import NoReturn

PATIENCE_SECONDS = 2.0
"""How long what has to be done at exit may take, such as writing the last answers of models."""


def end_process(code: int) -> NoReturn:
    """Ends this process without waiting for threads and tasks that cannot be stopped; one more Ctrl-C ends it here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    last = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
    last.start()
    last.join(PATIENCE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
