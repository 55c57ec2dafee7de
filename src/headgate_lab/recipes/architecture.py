"""Pruned architectures (announced for Appendix E4): what large strengths and small budgets leave of PreResNets.

The widths of all layers and streams are recorded; `headgate figure architecture` draws them, blocks that are gone
shaded. PreResNet-20 on CIFAR-10, 20 epochs on a CPU, one seed: at strength 0.5 the paper's way leaves 11 of 23 layers,
6 % of the channels that have gates, and 37.2 %; ours at 11k parameters, a quarter of that, leaves all 23 layers,
narrow, streams too, and 71.4 %. PreResNet-164, 60 epochs: not measured yet.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "architecture",
    "what is left of a network, layer by layer",
    "Appendix E4",
    1,
    partial(shown, "architecture"),
    together=8,
)
