"""Pruned architectures (announced for Appendix E4): what large strengths and small budgets leave of PreResNets.

The widths of all layers and streams are recorded; `headgate figure architecture` draws them, blocks that are gone
shaded. On CIFAR-10, PreResNet-164 for 60 epochs (not measured yet), PreResNet-20, which a CPU can train, for 20.
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
