"""Every result the paper prints, as data: which experiment, which setting, which metric, the number, its place.

The paper is Bu, Daw, Maruf, Karpatne: Learning Compact Representations of Neural Networks using DiscriminAtive Masking
(DAM), NeurIPS 2021. Figures are printed without their numbers; each of their settings has an entry without a value.
"""

from headgate_lab.paper.appendix import CIFAR, CKA, LENET, TINYIMAGENET
from headgate_lab.paper.number import Number, Part
from headgate_lab.paper.others import BEYOND
from headgate_lab.paper.pruning import CURVES, PERMUTATION, STABILITY
from headgate_lab.paper.representation import AUTOENCODER, DIMENSION, LINK_PREDICTION, RECOMMENDER, SENSITIVITY
from headgate_lab.paper.slimming import SLIMMING

__all__ = ["PAPER", "Number", "Part"]

# The paper's accuracies are those of networks with gates before BatchNorm in them. Small networks have the same, but
# for older ones, which were cut without what closed channels add: what is to be compared is the accuracy before that.
BEFORE = ("accuracy_before",)

PAPER: dict[str, Part] = {
    "dimension": Part("The dimension of synthetic data", "Section 4.1, Fig. 3", DIMENSION),
    "sensitivity": Part("Learning rate, strength and initial offset", "Appendix C", SENSITIVITY),
    "recommender": Part(
        "Recommendation with graph networks", "Section 4.2, tab:recommender", RECOMMENDER, ours=("rmse_last",)
    ),
    "link_prediction": Part("Link prediction on citation networks", "Section 4.3, Fig. 4", LINK_PREDICTION),
    "autoencoder": Part("An autoencoder of handwritten digits, DAM against L1", "Section 4.4, Fig. 5", AUTOENCODER),
    "curves": Part("PreResNets against other methods", "Section 5, Fig. 6", CURVES, ours=BEFORE),
    "stability": Part("Losses during training", "Section 5, Fig. 7", STABILITY),
    "permutation": Part(
        "Five random orders of the channels", "Section 5, tab:permutation_invariance", PERMUTATION, ours=BEFORE
    ),
    "lenet": Part("LeNet-5 on MNIST", "Appendix E.1, tab:mnist_dam_lenet", LENET),
    "cifar": Part("VGG and PreResNets on CIFAR", "Appendix E.2, tab:cifar", CIFAR, ours=BEFORE),
    "cka": Part("How alike the features of a pruned layer are", "Appendix E.3, tab:cka", CKA),
    "tinyimagenet": Part("PreResNet-164 on TinyImageNet", "Appendix E.4, tab:tinyimagenet", TINYIMAGENET, ours=BEFORE),
    "architecture": Part(
        "What is left of a network, layer by layer",
        "Appendix E4, announced in Section 5",
        (),
        ours=("accuracy", "params", "pruned", "layers_left", "layers_gone", "dead"),
    ),
    # What others print.
    "beyond": Part("ResNets and VGG-19 at what others print", "not in the paper", BEYOND, printed_by="others"),
    "slimming": Part(
        "Network Slimming beside what its authors print", "not in the paper", SLIMMING, printed_by="authors"
    ),
    # The paper has no experiments on these: nothing is printed.
    "ablation": Part("Where the paper's text and its code disagree", "Eq. 2 and 3, reference code", ()),
    "sweep": Part("Any strength, our way and the naive one", "not in the paper", ()),
    "budget": Part("What a budget is made of", "not in the paper", ()),
    "pretrained": Part("Trained networks made small, in every order of closing", "not in the paper", ()),
}
