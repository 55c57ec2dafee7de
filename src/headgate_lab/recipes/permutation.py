"""Five random orders of the channels (tab:permutation_invariance): PreResNets on CIFAR-10, strength 0.4 in the paper.

A seed draws an order for every gate; weights and batches are those of seed 0 in all runs, as the paper's text has it.
Beside it stand the same network with the channels in their own order and weights and batches of every seed (what
permutations are to be compared with). The paper trained PreResNet-164 for 200 epochs; here it has 60, stands beside
ours at the paper's size and the uniformly narrower network, and is not measured yet. PreResNet-20, for which a CPU is
enough, has strength 0.2 and 6 epochs.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "permutation",
    "five random orders of the channels",
    "tab:permutation_invariance",
    5,
    partial(shown, "permutation"),
    together=8,
)
