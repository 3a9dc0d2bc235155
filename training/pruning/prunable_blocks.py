"""The blocks of a model whose heads and feed-forward rows can be pruned."""

import dataclasses
from typing import Any

from kmha.features import SIDES
from kmha.models.pair_encoder import A_TO_A, A_TO_B, B_TO_A, B_TO_B, PAIR

ATTENTION = "attention"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of attention and a feed-forward network."""

    name: str  # such as "block 1", "a block 1" or "char round 1"
    layer: Any  # the `AttentionBlock`
    maps: tuple[
        tuple[str, int], ...
    ]  # its attention weights in the model's outputs, with the layer index in each
    across: bool = False  # cross-attention to the other text

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.layer.attention.num_heads

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.layer.attention.head_size

    @property
    def rows(self) -> int:
        """Inner size of the feed-forward network."""
        return self.layer.feed_forward.intermediate_dim

    @property
    def output_kernel(self) -> Any:
        """Weights that read the heads, [N H, D]; a head whose rows are zero has no effect."""
        return self.layer.attention.output_kernel

    @property
    def contract_kernel(self) -> Any:
        """Weights that read the inner values of the feed-forward network, [F, D]."""
        return self.layer.feed_forward.contract.kernel


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks that share a size in the model's configuration: one block, or two if each text has its own encoder."""

    granularity: int  # index of the encoder's configuration
    is_round: bool  # a round of cross-attention
    index: int  # of the block, or round, in that encoder
    blocks: list[Block]


def prunable_groups(model: Any) -> list[Group]:
    """The blocks of a classifier, a matcher or a tagger, from the first to the last."""
    pairs = getattr(model, "pairs", None)
    if pairs is None:
        blocks = enumerate(model.encoder.blocks)
        names = ((i, f"block {i + 1}", layer) for i, layer in blocks)
        return [Group(0, False, i, [Block(name, layer, ((ATTENTION, i),))]) for i, name, layer in names]
    found = []
    for number, (name, pair) in enumerate(zip(model.granularities, pairs, strict=True)):
        found += _groups_of_pair(number, f"{name}_" if len(pairs) > 1 else "", pair)
    return found


def _groups_of_pair(number: int, prefix: str, pair: Any) -> list[Group]:
    """The blocks of the encoders of one granularity, then its rounds."""
    joint, shared = pair.form == "joint", pair.share_weights
    title = prefix.replace("_", " ")
    kinds = [("block", False, [encoder.blocks for encoder in pair.encoders], (A_TO_A, B_TO_B))]
    if pair.rounds_a:
        rounds = [pair.rounds_a] if shared else [pair.rounds_a, pair.rounds_b]
        kinds.append(("round", True, rounds, (A_TO_B, B_TO_A)))
    found = []
    for kind, is_round, stacks, names in kinds:
        for index in range(len(stacks[0])):
            maps = [((f"{prefix}{name}", index),) for name in names]
            if joint:
                maps = [((f"{prefix}{PAIR}", index),)]
            elif shared:
                maps = [(*maps[0], *maps[1])]
            sides = [""] if len(stacks) == 1 else [f"{side} " for side in SIDES]
            blocks = [
                Block(f"{title}{side}{kind} {index + 1}", stack[index], own, is_round)
                for side, stack, own in zip(sides, stacks, maps, strict=True)
            ]
            found.append(Group(number, is_round, index, blocks))
    return found
