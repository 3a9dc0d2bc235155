"""Shapes of encoders by name, as of the published BERT miniatures."""

import dataclasses
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.config import EncoderSection


def with_size(encoder: EncoderSection) -> EncoderSection:
    """The section with the numbers that its size stands for.

    Raises:
        InputError: A number was given that differs from the size's; the flag is named.

    Source: Turc et al. 2019, arXiv:1908.08962.
    """
    if not encoder.size:
        return encoder
    sizes = {
        "tiny": EncoderConfig.bert_tiny,
        "mini": EncoderConfig.bert_mini,
        "small": EncoderConfig.bert_small,
    }
    named = sizes[encoder.size]()
    wanted: dict[str, Any] = {
        name: getattr(named, name) for name in ("hidden_dim", "num_layers", "num_heads", "intermediate_dim")
    }
    usual = EncoderSection()
    for name, value in (*wanted.items(), ("head_dim", named.hidden_dim // named.num_heads)):
        given = getattr(encoder, name)
        if given not in (value, getattr(usual, name)):
            raise InputError(
                f"--encoder.{name.replace('_', '-')}: wanted {value} for --encoder.size {encoder.size}, given {given}"
            )
    return dataclasses.replace(encoder, **wanted)
