"""Networks that have been trained, then made small in a tenth of the epochs that took: which order of closing is best?

A dense network is trained, and from there each run goes its own way for a tenth of the epochs, with a learning rate
that starts anew: gates that close by a budget, in an order from data or in none, or one cut by magnitude. The controls
are trained from scratch for as many epochs as both together: the dense network, and uniformly narrower ones of the
same sizes. Every run tells the dense network's accuracy too.

LeNet-5, three seeds on a CPU, dense 99.2 %: at 50 and 30 % of the parameters all ways end between 98.8 and 99.1 %. At
10 % orders from data have 98.4 to 98.5 %, random and index 98.2 %, one cut by magnitude 98.1 %; the narrower network,
which had all epochs to itself, 98.5 % too.

PreResNet-20, one seed on an H200, dense 90.8 %. Percent at 50, 30 and 10 % of the parameters: orders from data 86.4 to
87.2, 84.8 to 85.7 and 78.8 to 80.6 (by activation variance, by variance and by Taylor best), random 86.4, 84.7 and
79.0, index 86.5, 84.7 and 78.3, one cut by magnitude 75.2, 71.4 and 56.7. The narrower network, in all epochs, has
89.8, 88.3 and 83.4: nothing here reaches it. The rate starts at that of the dense training, 0.1, which undoes much of
what the network had learned in the first of the ten epochs.

With a fifth of that rate, likewise, dense 91.4 %: orders from data 89.2 to 89.8, 86.8 to 88.1 and 80.9 to 82.4 (by
magnitude best at all three sizes), random 89.0, 87.0 and 80.7, index 89.0, 87.0 and 80.6, one cut by magnitude 89.8,
83.8 and 66.5. So all orders end 1 to 3 points higher, of which half a point may be the dense network that they began
with; at half of the size a cut is as good as a gate, and ten epochs come close to the narrower network's 110 (89.8,
88.3, 83.4, trained beside the dense network of 90.8 %) without passing it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headgate as hg
from headgate_lab.data import mnist
from headgate_lab.engine.images import Resident
from headgate_lab.engine.job import Job, Metrics, Training, later
from headgate_lab.engine.network import Network, Optimization, accuracy
from headgate_lab.engine.staged import Stage, Staged
from headgate_lab.methods.budgeted import Budgeted
from headgate_lab.methods.contract import Method
from headgate_lab.methods.narrower import Narrower
from headgate_lab.methods.one_shot import OneShot
from headgate_lab.models.lenet import LeNet5
from headgate_lab.models.preresnet import PreResNet
from headgate_lab.recipes.cifar import augmented
from headgate_lab.recipes.classification import (
    Classification,
    Data,
    batches_of,
    full_size,
    half_cosine,
    network_of,
    results,
)
from headgate_lab.recipes.experiment import Experiment
from headgate_lab.recipes.lenet import digits_of_mnist

SHARES = (0.5, 0.3, 0.1)
NetworkName: TypeAlias = Literal["lenet5", "preresnet20"]
NETWORKS: dict[NetworkName, Callable[[float], nn.Module]] = {
    "lenet5": lambda width: LeNet5(torch.relu, width),
    "preresnet20": lambda width: PreResNet(20, width=width),
}
Order: TypeAlias = Literal["magnitude", "norm_scale", "variance", "taylor", "mutual_information", "random", "index"]
ORDERS: tuple[Order, ...] = get_args(Order)
# A rate for PreResNet-20's tail that leaves more of what was learned.
GENTLE = 0.02
# An order is found on the first training images, as they are; in batches, since activations need memory.
LOOKED_AT, AT_ONCE = 5_000, 500


@dataclass(frozen=True)
class Pretrained(Classification):
    """One way to a small network. LeNet-5 learns MNIST by Adam, PreResNet-20 CIFAR-10 by SGD.

    Attributes:
        method: "gates": a trained network's, closed by a budget. "one-shot": a trained network is cut by magnitude,
            the same share of every layer, and trained on. "narrower" and "dense": the controls, from scratch.
        order: with "gates", what closes first.
        share: the parameters wanted, as a fraction of the dense network's.
        length: epochs in which the dense network is trained.
        tail: epochs that follow. The controls have all of them.
        reach: with "gates", the fraction of the tail by which the size is met.
        tail_lr: the learning rate with which the tail begins; None: that of the dense training.
    """

    experiment: ClassVar[str] = "pretrained"

    network: NetworkName
    method: Literal["gates", "one-shot", "narrower", "dense"]
    order: Order | None = None
    share: float | None = None
    lr: float = 0.1
    weight_decay: float = 5e-4
    reach: float = 0.5
    tail_lr: float | None = later(None)
    tail: int = field(default=10, kw_only=True)
    length: int = field(default=100, kw_only=True)
    batch_size: int = field(default=128, kw_only=True)

    @property
    def setting(self) -> str:
        """Network, method, order and size, and the rate of the tail if it has its own."""
        parts = [self.network, self.method, self.order, None if self.share is None else f"{100 * self.share:g} %"]
        rate = "" if self.tail_lr is None else f", tail rate {self.tail_lr:g}"
        return " ".join(part for part in parts if part is not None) + rate

    @property
    def epochs(self) -> int:
        """Both parts of the training."""
        return self.length + self.tail

    @property
    def is_control(self) -> bool:
        """Whether nothing happens when the dense networks have been trained."""
        return self.method in ("narrower", "dense")

    @property
    def architecture(self) -> Hashable:
        """The network."""
        return self.network

    @property
    def cohort(self) -> Hashable:
        """Those that may share a dense network."""
        return self.network, self.length, self.batch_size

    @property
    def params(self) -> int:
        """The parameters wanted."""
        assert self.share is not None
        return int(self.share * full_size(self))

    def dense(self) -> Pretrained:
        """How the dense network is trained."""
        return replace(self, method="dense", order=None, share=None, tail_lr=None)

    def build(self, width: float) -> nn.Module:
        """The network."""
        return NETWORKS[self.network](width)

    def pruning(self) -> Method:
        """At the beginning, none."""
        return Narrower(self.params if self.method == "narrower" else None)

    def data(self) -> Data:
        """MNIST as it is, or CIFAR-10 shifted and flipped."""
        return Data(digits_of_mnist(), mnist.NORMALISATION) if self.network == "lenet5" else augmented("cifar10")

    def optimization(self) -> Optimization:
        """Rates fall along a half cosine."""
        kind: Literal["adam", "sgd"] = "adam" if self.network == "lenet5" else "sgd"
        return Optimization(kind, self.lr, self.weight_decay, half_cosine)

    def optimization_of_tail(self) -> Optimization:
        """From the start again, or from a rate of its own."""
        return replace(self.optimization(), lr=self.lr if self.tail_lr is None else self.tail_lr)

    @classmethod
    def start(cls, jobs: Sequence[Job], device: torch.device) -> Training:
        """A dense network for all jobs that begin with the same, and one for each control."""
        recipe = _of(jobs[0])
        train, test = recipe.data().resident(device)
        pruning = Pruning(jobs, train, test)
        beginnings = list(dict.fromkeys(map(beginning, jobs)))
        templates: dict[Hashable, nn.Module] = {}
        networks = [
            network_of(_of(job), job.seed, epochs, train, pruning.example, templates) for job, epochs in beginnings
        ]
        shared = [beginnings.index(beginning(job)) for job in jobs]
        stages = [Stage("train", recipe.length), Stage("prune", recipe.tail, pruning.fork)]
        return Staged(networks, shared, stages, pruning.finish)


def beginning(job: Job) -> tuple[Job, int]:
    """What a job begins as, and the epochs this is trained for: a control as itself, for all of them."""
    recipe = _of(job)
    return (job, recipe.epochs) if recipe.is_control else (Job(recipe.dense(), job.seed), recipe.length)


class Pruning:
    """What happens to trained networks, for jobs side by side. Orders are found and gates inserted once for all sizes.

    `gated` holds the networks whose gates are about to close, by beginning and order.
    """

    def __init__(self, jobs: Sequence[Job], train: Resident, test: Resident) -> None:
        self.jobs, self.train, self.test = jobs, train, test
        self.example = train.normalised(train.images[:2], torch.float32)
        self.gated: dict[Hashable, nn.Module] = {}
        self.dense_accuracy: dict[Hashable, float] = {}

    def fork(self, number: int, network: Network) -> Network:
        """The network with which a job goes on from the dense one."""
        job, recipe = self.jobs[number], _of(self.jobs[number])
        if recipe.is_control:
            return network
        if (key := beginning(job)) not in self.dense_accuracy:
            self.dense_accuracy[key] = accuracy(network.model, self.test)
        method: Method
        if recipe.method == "one-shot":
            method = OneShot(recipe.params)
            model = method.attach(network.model, self.example)
        else:
            method = Budgeted(recipe.params, reach=recipe.reach, train_on=True, by_hand=True)
            model = self._gated(job, network.model)
        batches = batches_of(recipe, self.train, job.seed)
        batches.load_state_dict(network.batches.state_dict())
        return Network(model, method, batches, recipe.optimization_of_tail(), recipe.tail, job.seed)

    def finish(self, number: int, network: Network) -> Metrics:
        """Results, and what the dense network had reached."""
        job, recipe = self.jobs[number], _of(self.jobs[number])
        found = results(network, full_size(recipe), self.test, self.example)
        return found if recipe.is_control else {**found, "dense_accuracy": self.dense_accuracy[beginning(job)]}

    def _gated(self, job: Job, dense: nn.Module) -> nn.Module:
        recipe = _of(job)
        key = beginning(job), recipe.order
        if key not in self.gated:
            model, floor = copy.deepcopy(dense), 1 if recipe.network == "lenet5" else 4
            hg.insert_gates_(model, self.example, order=self._order(job, dense), floor=floor)
            self.gated[key] = model
        return copy.deepcopy(self.gated[key])

    def _order(self, job: Job, dense: nn.Module) -> str | Mapping[str, Tensor]:
        order = _of(job).order
        assert order is not None
        if order == "index":
            return order
        if order == "random":
            return f"random:{job.seed}"
        return hg.order_by(dense, order, self._looked_at(), loss_fn=cross_entropy)

    def _looked_at(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.train.images[:LOOKED_AT].split(AT_ONCE), self.train.labels[:LOOKED_AT].split(AT_ONCE)
        for some, theirs in zip(images, labels, strict=True):
            yield self.train.normalised(some, torch.float32), theirs


def _of(job: Job) -> Pretrained:
    assert isinstance(job.recipe, Pretrained)
    return job.recipe


def recipes() -> Sequence[Pretrained]:
    """For every network: each order, the one cut and the narrower network at every size, and the dense network.

    PreResNet-20 also with a gentle tail, beside the same controls.
    """
    found: list[Pretrained] = []
    for network in NETWORKS:
        # LeNet-5 has no norms whose scales could tell an order.
        orders = [order for order in ORDERS if (network, order) != ("lenet5", "norm_scale")]
        ways = [Pretrained(network, "gates", order, share) for order in orders for share in SHARES]
        ways += [Pretrained(network, "one-shot", None, share) for share in SHARES]
        ways += [Pretrained(network, "narrower", None, share) for share in SHARES]
        ways.append(Pretrained(network, "dense"))
        found += [on_digits(way) for way in ways] if network == "lenet5" else ways
    gently = [way for way in found if way.network == "preresnet20" and not way.is_control]
    return [*found, *(replace(way, tail_lr=GENTLE) for way in gently)]


def on_digits(recipe: Pretrained) -> Pretrained:
    """With the rate, the epochs and the batches for MNIST."""
    return replace(recipe, lr=2e-3, weight_decay=0.0, length=20, tail=2, batch_size=256)


EXPERIMENT = Experiment(
    "pretrained", "trained networks made small, in every order of closing", "not in the paper", 3, recipes, together=28
)
