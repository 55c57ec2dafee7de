"""How alike the features of a pruned layer are (tab:cka): PreResNets, unpruned and pruned.

PreResNet-20 on CIFAR-10, 20 epochs on a CPU in bfloat16, mean linear CKA: dense 0.46, the paper's way 0.45, Network
Slimming 0.44, ChipNet 0.53, one seed each; two seeds: ours 0.45, the narrower network 0.40 and 0.50. The paper prints
0.273, 0.229, 0.328 and 0.295 of the first four, of PreResNet-164: that pruning by DAM leaves features less alike than
there were, and by the other two more alike, is not to be seen in the small network but of ChipNet. What the paper gives
as deviations, 0.013 to 0.021, are a tenth of ours, 0.16 to 0.27, and may be variances. PreResNet-164 is not measured
yet.

Features are what the channels of the second convolution of the last block of stage 1 write: in PreResNet-164 the 54th
of the paper's gates, the stem's being the first, and what the 54th BatchNorm scales, where Network Slimming and ChipNet
prune. Each is a map of 32 by 32 numbers of each of 1,000 test images; that norm's scales and shifts change no CKA
between them. Those that the small network still computes are compared pair by pair. Which CKA the paper's table shows,
and on which dataset, is not said: both the linear one (`cka`) and that with Gaussian kernels of the median distance
(`rbf_cka`) are recorded, on CIFAR-10. The paper trained for 200 to 270 epochs; here PreResNet-164 has 60 in all.
"""

from __future__ import annotations

from functools import partial

from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.preresnets import shown

EXPERIMENT = Experiment(
    "cka", "how alike the features of a pruned layer are", "tab:cka", 1, partial(shown, "cka"), together=8
)
