"""Scans (floor 2): statistics over all weights of a call, exactly, in one pass and in linear memory. Arrays in and out.

`reference` says what each means, in float64; `cpu` computes the same by compiled strips, `device` on an accelerator.
"""

from wherefrom.scans.contract import NAMES, Attention
from wherefrom.scans.engines import scan
from wherefrom.scans.result import Level, Scan, Strongest, distance_bins, finest_block, means

__all__ = ["NAMES", "Attention", "Level", "Scan", "Strongest", "distance_bins", "finest_block", "means", "scan"]
