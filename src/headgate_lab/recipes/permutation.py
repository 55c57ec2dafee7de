"""Five random orders of the channels (tab:permutation_invariance): PreResNets on CIFAR-10, strength 0.4 in the paper.

A seed draws an order for every gate; weights and batches are those of seed 0 in all runs, as the paper's text has it.
Beside it stand the same network with the channels in their own order and weights and batches of every seed: what
permutations are to be compared with.

PreResNet-20, at strength 0.2 for 6 epochs on a CPU in bfloat16, five seeds: over random orders accuracies spread as
they do over seeds, by 0.6 % of their mean (67.7 and 67.1 %). What goes spreads more: channels by 5.6 % and parameters
by 17 % over orders, by 2.9 and 7.3 % over seeds. With five of each that may be chance. The paper prints 0.2 % for
accuracies, 0.3 % for channels and 0.5 % for parameters, of PreResNet-164 after 200 epochs.

PreResNet-164 has 60 epochs here, stands beside ours at the paper's size and the uniformly narrower network, and is not
measured yet.
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
