"""Pictures of experiments, drawn from records. Whoever imports this imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from headgate_lab.report.figures.architecture import architecture
from headgate_lab.report.figures.autoencoder import autoencoder
from headgate_lab.report.figures.curves import curves
from headgate_lab.report.figures.dimension import dimension
from headgate_lab.report.figures.lenet import lenet
from headgate_lab.report.figures.likeness import likeness
from headgate_lab.report.figures.link_prediction import link_prediction
from headgate_lab.report.figures.losses import losses
from headgate_lab.report.figures.parts import parts
from headgate_lab.report.figures.sensitivity import sensitivity
from headgate_lab.report.figures.strengths import strengths
from headgate_lab.report.figures.tradeoff import cifar, pretrained, tinyimagenet
from headgate_lab.report.runs import Record, Runs, as_shown, by_recipe

# Each draws what the runs of an experiment, at least one, say.
FIGURES: dict[str, Callable[[Sequence[Runs]], Figure]] = {
    "dimension": dimension,
    "sensitivity": sensitivity,
    "link_prediction": link_prediction,
    "autoencoder": autoencoder,
    "curves": curves,
    "stability": losses,
    "lenet": lenet,
    "cifar": cifar,
    "cka": likeness,
    "architecture": architecture,
    "tinyimagenet": tinyimagenet,
    "sweep": strengths,
    "pretrained": pretrained,
    "budget": parts,
}


def picture(experiment: str, records: Sequence[Record]) -> bytes:
    """The figure of an experiment as a PNG.

    Raises:
        ReportError: the records lack what the figure shows.
    """
    image = io.BytesIO()
    FIGURES[experiment](as_shown(experiment, by_recipe(records))).savefig(image, format="png", dpi=150)
    return image.getvalue()
