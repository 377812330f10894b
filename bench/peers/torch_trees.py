"""Tree-LSTMs over pairs of sentences in PyTorch; runs in a peer's own Python.

All of them compute what the nets of examples/tree_lstm.py do, from the same weights. Schedules are
made anew for every batch, as training on shuffled data has to.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from bench import trees


class TorchTrees:
    """Runs one batch after the other, over and over, perhaps with backward."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        self._batches = trees.load(request["batches"])
        self._check = trees.load(request["check"])[0]
        self._next = 0
        weights = np.load(request["weights"])
        self._w = {name: torch.from_numpy(weights[name]) for name in sorted(weights.files)}
        self._backward = request["backward"]
        if self._backward:
            for weight in self._w.values():
                weight.requires_grad_()
        self.prepare()

    def prepare(self) -> None:
        """What depends on the weights or the data, and is done once."""

    def __call__(self) -> list:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return self._run(batch)

    def found(self) -> list:
        """Of the batch to check: scores as probabilities, or the loss and the gradients."""
        return self._run(self._check)

    def _run(self, batch: trees.Batch) -> list:
        if not self._backward:
            with torch.inference_mode():
                return [torch.softmax(self.scores(batch), -1).numpy()]
        for weight in self._w.values():
            weight.grad = None
        scores = self.scores(batch)
        loss = functional.cross_entropy(scores, torch.from_numpy(batch.targets))
        loss.backward()
        return [
            loss.detach().reshape(1).numpy(),
            *(self._w[n].grad.numpy() for n in sorted(self._w)),
        ]

    def scores(self, batch: trees.Batch):
        """Of each pair, before the softmax."""
        return self.compare(self.roots(batch))

    def roots(self, batch: trees.Batch):
        """The states of the roots, in the order of the sentences."""
        raise NotImplementedError

    def compare(self, roots):
        """Scores of pairs whose left roots come first."""
        w = self._w
        left, right = roots.chunk(2)
        both = torch.cat([(left - right).abs(), left * right], 1)
        wide = torch.sigmoid(functional.linear(both, w["wide_weight"], w["wide_bias"]))
        return functional.linear(wide, w["score_weight"], w["score_bias"])


class Schedule:
    """Nodes by their depth, for whole levels at a time; no Python for a single node.

    The children of a level are the level below it, all of it: states need no gathering, neither
    forward nor backward. In a level the nodes with children come first.

    Attributes:
        order: nodes of the batch, the deepest level first.
        sizes: nodes of each level.
        inner: nodes of each level that have children.
        parents: of the nodes of the level before each level: which of its nodes is the parent.
        edges: of all nodes but the roots, where in the order the parent is.
        roots: where the roots are in the last level.
    """

    def __init__(self, batch: trees.Batch) -> None:
        parents = batch.parents
        depth = np.zeros(len(parents), np.int64)
        nodes = np.flatnonzero(parents >= 0)
        above = parents[nodes]
        inside = np.zeros(len(parents), bool)
        inside[above] = True
        while len(nodes):
            depth[nodes] += 1
            above = parents[above]
            kept = above >= 0
            nodes, above = nodes[kept], above[kept]
        self.order = np.argsort(-2 * depth - inside, kind="stable")
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(place))
        sizes = np.bincount(depth)[::-1]
        starts = np.cumsum(sizes) - sizes
        self.sizes = sizes.tolist()
        self.inner = np.bincount(depth[inside], minlength=len(sizes))[::-1].tolist()
        self.edges = place[parents[self.order[: starts[-1]]]]
        local = torch.from_numpy(self.edges - np.repeat(starts[1:], sizes[:-1]))
        self.parents = [None, *local.split(self.sizes[:-1])]
        self.roots = torch.from_numpy(place[batch.roots] - starts[-1])


class Levels(TorchTrees):
    """Level by level, written by hand. Input products are made in front of the loop.

    Of the ways to sum over children, ``index_add`` was faster than ``segment_reduce``, sums of h
    and c apart faster than joined, and levels by depth as fast as any order by height can be, for
    that one has to gather the states of children.
    """

    def roots(self, batch: trees.Batch):
        w = self._w
        plan = Schedule(batch)
        gates, keep = self.projected(batch.words[plan.order], plan.edges)
        units = keep.shape[1]
        keep_back, gates_back = w["f_h2h_weight"].t(), w["iou_h2h_weight"].t()
        keeps = iter(keep.split(plan.sizes[:-1]))
        h = c = None
        levels = zip(gates.split(plan.sizes), plan.inner, plan.parents, strict=True)
        for iou, count, parent in levels:
            if parent is not None:
                f = torch.sigmoid(torch.addmm(next(keeps), h, keep_back))
                h_sum = torch.zeros(count, units).index_add_(0, parent, h)
                c_sum = torch.zeros(len(iou), units).index_add_(0, parent, f * c)
                above, leaves = iou.split([count, len(iou) - count])
                iou = torch.cat([torch.addmm(above, h_sum, gates_back), leaves])
            i, o, u = iou.chunk(3, 1)
            new = torch.sigmoid(i), torch.tanh(u)
            c = new[0] * new[1] if parent is None else torch.addcmul(c_sum, *new)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h.index_select(0, plan.roots)

    def projected(self, words, edges):
        """Products of each word with the weights, and of the parent's word on each edge."""
        w = self._w
        x = functional.embedding(torch.from_numpy(words), w["embed_weight"])
        inner, which = np.unique(edges, return_inverse=True)
        keep = x.index_select(0, torch.from_numpy(inner))
        keep = functional.linear(keep, w["f_i2h_weight"], w["f_i2h_bias"])
        gates = functional.linear(x, w["iou_i2h_weight"], w["iou_i2h_bias"])
        return gates, keep.index_select(0, torch.from_numpy(which))


class LevelsOfWords(Levels):
    """The same; a word that comes more than once in a batch is multiplied only once."""

    def projected(self, words, edges):
        w = self._w
        once, which = np.unique(words, return_inverse=True)
        x = functional.embedding(torch.from_numpy(once), w["embed_weight"])
        gates = functional.linear(x, w["iou_i2h_weight"], w["iou_i2h_bias"])
        keep = functional.linear(x, w["f_i2h_weight"], w["f_i2h_bias"])
        places = torch.from_numpy(which), torch.from_numpy(which[edges])
        return gates.index_select(0, places[0]), keep.index_select(0, places[1])


class Package(TorchTrees):
    """The layer of pytorch-tree-lstm, with its own schedule of the whole forest."""

    def prepare(self) -> None:
        """Put the weights into the layer."""
        import treelstm

        units, columns = self._w["f_i2h_weight"].shape
        self._orders = treelstm.calculate_evaluation_orders
        self._layer = treelstm.TreeLSTM(columns, units)
        for name in ("iou", "f"):
            into, back = getattr(self._layer, f"W_{name}"), getattr(self._layer, f"U_{name}")
            into.weight = self._parameter(f"{name}_i2h_weight")
            into.bias = self._parameter(f"{name}_i2h_bias")
            back.weight = self._parameter(f"{name}_h2h_weight")

    def _parameter(self, name: str):
        self._w[name] = torch.nn.Parameter(self._w[name].detach(), self._backward)
        return self._w[name]

    def roots(self, batch: trees.Batch):
        children = np.flatnonzero(batch.parents >= 0)
        # It wants edges of a parent side by side, parents in the order of nodes.
        children = children[np.argsort(batch.parents[children], kind="stable")]
        edges = np.stack([batch.parents[children], children], 1).astype(np.int64)
        orders = map(torch.from_numpy, self._orders(edges, len(batch.parents)))
        nodes, sides = orders
        x = functional.embedding(torch.from_numpy(batch.words), self._w["embed_weight"])
        h, _ = self._layer(x, nodes, torch.from_numpy(edges), sides)
        return h.index_select(0, torch.from_numpy(batch.roots))


class PerSample(TorchTrees):
    """A function that calls itself for every child, one pair after the other."""

    def prepare(self) -> None:
        """Build the trees, which costs nothing later."""
        batches = [*self._batches, self._check]
        self._pairs = {id(batch): trees.pairs_in(batch) for batch in batches}
        for pairs in self._pairs.values():
            for pair in pairs:
                _ = pair.left.tree, pair.right.tree

    def scores(self, batch: trees.Batch):
        pairs = self._pairs[id(batch)]
        both = [self.compare(torch.cat([self.state(p.left), self.state(p.right)])) for p in pairs]
        return torch.cat(both)

    def state(self, sentence: trees.Sentence):
        """The state of a root."""
        w = self._w
        x = functional.embedding(torch.from_numpy(sentence.words), w["embed_weight"])
        gates = functional.linear(x, w["iou_i2h_weight"], w["iou_i2h_bias"]).split(1)
        keeps = functional.linear(x, w["f_i2h_weight"], w["f_i2h_bias"]).split(1)

        def visit(node: trees.Node):
            iou, c_sum = gates[node.position], None
            if node.children:
                h, c = map(torch.cat, zip(*map(visit, node.children), strict=True))
                f = torch.sigmoid(keeps[node.position] + functional.linear(h, w["f_h2h_weight"]))
                c_sum = (f * c).sum(0, keepdim=True)
                iou = iou + functional.linear(h.sum(0, keepdim=True), w["iou_h2h_weight"])
            i, o, u = iou.chunk(3, 1)
            c = torch.sigmoid(i) * torch.tanh(u)
            c = c if c_sum is None else c + c_sum
            return torch.sigmoid(o) * torch.tanh(c), c

        return visit(sentence.tree)[0]


KINDS = {
    "levels": Levels,
    "levels, each word once": LevelsOfWords,
    "pytorch-tree-lstm": Package,
    "per sample": PerSample,
}


def made(request: dict) -> TorchTrees:
    """The net that a request wants run."""
    return KINDS[request["net"]](request)
