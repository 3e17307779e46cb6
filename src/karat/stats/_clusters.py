"""The cost of clustering: the design effect, and the degrees of freedom that unequal clusters leave.

The variance is the cluster-robust one with the factor G/(G−1) (Liang & Zeger 1986). Its t distribution does
not have G−1 degrees of freedom when clusters differ in size: 20 clusters of 1 to 10 items then cover 92 %
instead of 95 %. The degrees are Satterthwaite's, after Bell & McCaffrey (2002), for clusters whose sums have the
variance n_g(1 + (n_g − 1)ρ), with the intra-cluster correlation ρ taken from the design effect. Equal clusters
give exactly G−1.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Sizes(msgspec.Struct):
    """Power sums of the sizes of clusters: whole numbers, so that they merge exactly."""

    clusters: int = 0
    items: int = 0
    squares: int = 0
    cubes: int = 0
    fourths: int = 0
    fifths: int = 0

    def add(self, size: int, times: int = 1) -> None:
        """Add clusters of one size."""
        self.clusters += times
        self.items += size * times
        self.squares += size**2 * times
        self.cubes += size**3 * times
        self.fourths += size**4 * times
        self.fifths += size**5 * times

    def merge(self, other: Sizes) -> None:
        """Add the clusters of another."""
        self.clusters += other.clusters
        self.items += other.items
        self.squares += other.squares
        self.cubes += other.cubes
        self.fourths += other.fourths
        self.fifths += other.fifths

    def with_singles(self, times: int) -> Sizes:
        """Return the sums with this many clusters of one item added."""
        total = Sizes()
        total.merge(self)
        total.add(1, times)
        return total

    @property
    def clustered(self) -> bool:
        """Whether any cluster holds more than one item."""
        return self.squares > self.items

    def correlation(self, design_effect: float) -> float:
        """The intra-cluster correlation implied by this design effect, between 0 and 1."""
        if not self.clustered:
            return 0.0
        return min(1.0, max(0.0, (design_effect - 1.0) / (self.squares / self.items - 1.0)))

    def degrees(self, design_effect: float) -> float:
        """The degrees of freedom for this design effect; G − 1 when all sizes are equal.

        trace(C)² / trace(C²) with C the covariance of the residuals s_g − n_g·mean: D − (nvᵀ + vnᵀ)/N + w·nnᵀ,
        where v are the variances of the clusters' sums, D their diagonal matrix and w = Σv/N².
        """
        if self.clusters < 2:
            return 0.0
        if not self.clustered:
            return self.clusters - 1.0
        n, n2 = float(self.items), float(self.squares)
        b = self.correlation(design_effect)
        a = 1.0 - b
        v = a * n + b * n2
        nv = a * n2 + b * self.cubes
        nnv = a * self.cubes + b * self.fourths
        vv = a * a * n2 + 2 * a * b * self.cubes + b * b * self.fourths
        nvv = a * a * self.cubes + 2 * a * b * self.fourths + b * b * self.fifths
        w = v / n**2
        trace = v - 2 * nv / n + w * n2
        square = (
            vv
            + 2 * (nv**2 + n2 * vv) / n**2
            + (w * n2) ** 2
            - 4 * nvv / n
            + 2 * w * nnv
            - 4 * w * n2 * nv / n
        )
        return min(self.clusters - 1.0, max(1.0, trace**2 / square)) if square > 0.0 else 1.0

    def fully_correlated(self) -> float:
        """The effective sample size if all items of a cluster were one: the least it can be."""
        return self.items * self.items / self.squares


def sizes_of(sizes: Iterable[int]) -> Sizes:
    """Return the power sums of cluster sizes."""
    total = Sizes()
    for size in sizes:
        total.add(int(size))
    return total
