"""PreResNets on CIFAR-10 by three methods, epoch by epoch (Fig. 7): losses in training and validation.

The paper's way, ChipNet and Network Slimming at four tenths of their channels, as in the figure; and ours. Beside the
losses stands what a method moves: the mean offset of all gates, the mean of ChipNet's masks, the mean of Network
Slimming's scales. PreResNet-20, for 20 epochs on a CPU in bfloat16, one seed, of ours two: as in the paper's figure,
losses fall to the end where there is one stage, and jump up where ChipNet's pruning and either fine-tuning begin; at
the end losses in validation are 0.53 in the paper's way, 0.50 in ours at half of its size, 0.70 by both others. While
its rate is large, the paper's way jumps in validation too. PreResNet-164 at strength 0.4, 60 epochs: not measured yet.
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
