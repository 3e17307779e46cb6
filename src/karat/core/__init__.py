"""`sygra.core…` with the package renamed: every module of the table of SyGra names, under `karat.core`.

There is no code here. A module such as `karat.core.eval.metrics.unit_metrics.base_unit_metric` is made when it is
imported, from the parts that the table names. A name that the table lacks is an ImportError as usual.
"""

from __future__ import annotations

import sys

from karat.graph.sygra import TableFinder, without_karat

sys.meta_path.append(TableFinder(without_karat))
