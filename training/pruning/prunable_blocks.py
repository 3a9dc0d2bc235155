"""The blocks of a model that can lose heads and feed-forward rows."""

import dataclasses
from typing import Any

from kmha.features import SIDES
from kmha.models.pair_encoder import A_TO_A, A_TO_B, B_TO_A, B_TO_B, PAIR

ATTENTION = "attention"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of attention and feed-forward.

    Attributes:
        name: Such as "block 1", "a block 1" or "char round 1".
        layer: The `AttentionBlock`.
        maps: Where its attention stands among what the model gives: names and places in their lists.
        across: Whether it looks at the other text.
    """

    name: str
    layer: Any
    maps: tuple[tuple[str, int], ...]
    across: bool = False

    @property
    def heads(self) -> int:
        """How many there are."""
        return self.layer.attention.num_heads

    @property
    def head_size(self) -> int:
        """Size of one of them."""
        return self.layer.attention.head_size

    @property
    def rows(self) -> int:
        """Inner size of the feed-forward network."""
        return self.layer.feed_forward.intermediate_dim

    @property
    def output_kernel(self) -> Any:
        """The weights that read the heads, [N H, D]: without a head's rows the head is gone."""
        return self.layer.attention.output_kernel

    @property
    def contract_kernel(self) -> Any:
        """The weights that read the inner values of the feed-forward network, [F, D]."""
        return self.layer.feed_forward.contract.kernel


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks that share a size in the model's settings: one, or where each text has an encoder of its own both.

    Attributes:
        granularity: Number of the encoder's settings.
        is_round: Whether it is a round of cross-attention.
        index: Which block, or round, of that encoder.
        blocks: One or two.
    """

    granularity: int
    is_round: bool
    index: int
    blocks: list[Block]


def prunable_groups(model: Any) -> list[Group]:
    """The blocks of a classifier, a matcher or a tagger, from below."""
    pairs = getattr(model, "pairs", None)
    if pairs is None:
        blocks = enumerate(model.encoder.blocks)
        return [
            Group(0, False, i, [Block(f"block {i + 1}", layer, ((ATTENTION, i),))]) for i, layer in blocks
        ]
    found = []
    for number, (name, pair) in enumerate(zip(model.granularities, pairs, strict=True)):
        found += _groups_of_pair(number, f"{name}_" if len(pairs) > 1 else "", pair)
    return found


def _groups_of_pair(number: int, prefix: str, pair: Any) -> list[Group]:
    """Of one granularity: the blocks of its encoders, then the rounds."""
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
