"""Section 4 and Appendix C: finding the dimension of representations."""

from __future__ import annotations

from headgate_lab.paper.number import Number

# Fig. 3 shows curves; the text says that DAM "consistently uncovers the exact dimension of the underlying factors".
# Appendix D: r from 5 to 20.
DIMENSION = tuple(
    Number("dimension", {"problem": problem, "factors": factors, "settings": "paper"}, place, str(factors))
    for problem, place in (("linear", "Fig. 3 (a)"), ("quadratic", "Fig. 3 (b)"), ("neural", "Fig. 3 (c)"))
    for factors in (5, 10, 15, 20)
)

# Heat maps of learning rate against strength and against initial offset, without numbers.
SENSITIVITY = tuple(
    Number(metric, {"problem": problem, "map": over}, f"Appendix C, {problem}", statistic=statistic)
    for problem in ("linear", "quadratic", "neural")
    for over in ("strength", "offset")
    for metric in ("dimension", "loss")
    for statistic in ("least", "median", "most")
)

# dataset, then RMSE and dimension of IGMC, then those of IGMC with a gate
_RECOMMENDER = """
flixster     0.8715 0.0005   128   0.8706 0.0003   32
douban       0.7189 0.0002   128   0.7183 0.0004   17
yahoo-music  19.2488 0.0123  128   19.0166 0.0444  83
"""


def _recommender() -> tuple[Number, ...]:
    numbers = []
    for line in _RECOMMENDER.strip().splitlines():
        dataset, *cells = line.split()
        for method, (rmse, spread, dimension) in (("igmc", cells[:3]), ("igmc-dam", cells[3:])):
            setting = {"dataset": dataset, "method": method}
            numbers.append(Number("rmse", setting, "tab:recommender", rmse, spread))
            numbers.append(Number("dimension", setting, "tab:recommender", dimension))
    return tuple(numbers)


RECOMMENDER = _recommender()

# Curves without numbers; Appendix D: strengths from 0.01 to 5 for the gated autoencoder. The widths are those of
# torch_geometric's example, which the paper says it used.
_GAE = {"width": 16, "hidden": 32}
LINK_PREDICTION = tuple(
    Number(metric, {"dataset": dataset, **_GAE, **setting}, place)
    for dataset, place in (("cora", "Fig. 4 (a)"), ("citeseer", "Fig. 4 (b)"), ("pubmed", "Fig. 4 (c)"))
    for setting in (
        {"method": "gae", "strength": 0.0},
        {"method": "gae-dam", "strength": 0.01},
        {"method": "gae-dam", "strength": 5.0},
    )
    for metric in ("dimension", "auc", "ap", "validation_auc")
)

# Curves without numbers; Appendix D: strengths from 0.01 to 10 for DAM, to 25 for L1.
AUTOENCODER = tuple(
    Number(metric, {"method": method, "strength": strength}, "Fig. 5")
    for method, strengths in (("dam", (0.01, 10.0)), ("l1", (0.01, 25.0)))
    for strength in strengths
    for metric in ("dimension", "test_mse", "macro_f1")
)
