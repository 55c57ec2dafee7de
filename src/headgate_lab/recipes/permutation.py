"""Five random orders of the channels (tab:permutation_invariance): PreResNet-164 on CIFAR-10, strength 0.4.

A seed draws an order for every gate; weights and batches are those of seed 0 in all runs, as the paper's text has it.
Beside it stand the same network with the channels in their own order and weights and batches of every seed (what
permutations are to be compared with), ours at the paper's size, and the uniformly narrower network. The paper trained
for 200 epochs; these have 60. Not measured yet.
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
