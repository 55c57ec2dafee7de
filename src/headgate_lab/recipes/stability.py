"""PreResNets on CIFAR-10 by three methods, epoch by epoch (Fig. 7): losses in training and validation.

The paper's way at strength 0.4, ChipNet and Network Slimming at four tenths of their channels, as in the figure; and
ours at the size that the paper's network ends in. Beside the losses stands what a method moves: the mean offset of all
gates, the mean of ChipNet's masks, the mean of Network Slimming's scales. PreResNet-164 has 60 epochs in all and is not
measured yet; PreResNet-20, for which a CPU is enough, has 20 and a strength of its own.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "stability",
    "losses of every epoch, by three methods and ours",
    "Fig. 7",
    1,
    partial(shown, "stability"),
    together=8,
)
