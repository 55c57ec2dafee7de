"""PreResNets on CIFAR by every method (Fig. 6): accuracy against size, and the time that each stage takes.

PreResNet-20 on CIFAR-10 for 20 epochs, on a CPU in bfloat16, two seeds: ours has 82.8 +- 0.3 % at 79k parameters and
71.1 +- 0.4 % at 11k, the uniformly narrower network 82.7 +- 0.0 and 70.1 +- 0.5 %: no difference at 79k. The widths
that ours found have, with fresh weights, 81.2 +- 0.2 and 71.5 +- 0.5 %: at 79k they are worse than uniform ones, so
that what ours has learned while it was wide makes up for them. One seed: the dense network has 85.8 %, Network Slimming
79.8, 76.2 and 57.3 % at 165k, 126k and 82k, ChipNet 79.3, 75.7 and 59.7 % at 180k, 137k and 77k: their cuts leave 10 to
26 %, and four epochs of fine-tuning are too few to get over that. The paper's way has 81.8 % at 160k (strength 0.1) and
37.2 % at 47k (0.5). Their times are of CPUs with other work on them: the paper's way took 42 and 25 minutes for the
same steps.

PreResNet-164, not measured yet: the paper's way at five of its strengths, Network Slimming and ChipNet at up to five of
its ratios of channels, and ours and the uniformly narrower network at five sizes. All have 60 epochs in all, found
widths after their search, where the paper's DAM has 200, its Network Slimming 250 and its ChipNet 270.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "curves", "PreResNets by every method: accuracy, size, time", "Fig. 6", 1, partial(shown, "curves"), together=8
)
