"""PreResNets on CIFAR by every method (Fig. 6): accuracy against size, and the time that each stage takes.

PreResNet-164 the paper's way at five of its strengths, Network Slimming and ChipNet at up to five of its ratios of
channels, and ours and the uniformly narrower network at five sizes. All have 60 epochs in all, where the paper's DAM
has 200, its Network Slimming 250 and its ChipNet 270. Not measured yet. Of PreResNet-20, for which a CPU is enough, two
strengths and sizes and three ratios, for 20 epochs.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "curves", "PreResNets by every method: accuracy, size, time", "Fig. 6", 1, partial(shown, "curves"), together=8
)
