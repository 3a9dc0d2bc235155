"""One benchmark: models loaded one after the other, given the same rows, measured in turns."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.benchmark.process import read_through, start_worker
from export.benchmark.rounds import Job, Player, jobs, play, warm
from export.benchmark.timed import BUNDLE, PEERS
from export.predictors.artifacts import Artifact
from kmha.bundle.manifest import MANIFEST, MODEL, VOCABULARY
from kmha.errors import InputError
from training.io.json_subprocess import Crashed

logger = logging.getLogger("kmha")

RUN_NAME = "the run itself"
WARM_SECONDS = 2.0


@dataclass(frozen=True)
class Entry:
    """A model to load: its name for the reader, its kind, where it stands."""

    name: str
    kind: str
    path: Path
    bytes: int | None


@dataclass(frozen=True)
class Rules:
    """How to measure.

    Attributes:
        most_rows: Texts taken of those given, spread evenly; 0 takes all.
        seconds: For each model and each kind of input, one row at a time, and as much in batches.
        threads: Of each model.
        batch_sizes: Rows a call when in batches.
        peers: Whether to measure encoders of the same sizes by others.
    """

    most_rows: int = 256
    seconds: float = 3.0
    threads: int = 1
    batch_sizes: tuple[int, ...] = (8, 32)
    peers: bool = False


@dataclass(frozen=True)
class Played:
    """What a benchmark found.

    Attributes:
        players: The run, the artifacts, the peers; each of those that were loaded.
        skipped: Peers that were not, and why.
        rows: How many texts.
        ids_length: Tokens of every row of ids; None where no length suits all.
        rounds: How many were played, one row at a time and in batches.
    """

    players: list[Player]
    skipped: dict[str, str]
    rows: int
    ids_length: int | None
    rounds: tuple[int, int]


def entries(run: Path, artifacts: Sequence[Artifact]) -> list[Entry]:
    """The run and its artifacts."""
    files = [run / name for name in (MODEL, VOCABULARY, MANIFEST)]
    size = sum(file.stat().st_size for file in files if file.is_file())
    copies = [Entry(str(each.path), each.format, each.path, each.bytes) for each in artifacts]
    return [Entry(RUN_NAME, BUNDLE, run, size), *copies]


def play_match(expected: Sequence[Entry], texts: Sequence[str] | None, rules: Rules) -> Played:
    """Loads all models and measures them.

    Args:
        expected: The run first.
        texts: To answer; None takes the run's sample.
        rules: How to measure.

    Raises:
        InputError: A model cannot be used, or there are no texts.
        Crashed: The run's own process died.
    """
    with contextlib.ExitStack() as stack:
        players, skipped = [], {}
        for entry in expected:
            logger.info(f"loading {entry.name}")
            players.append(_player(entry, stack, rules.threads))
        _check_alive(players[0])
        run = players[0].facts["run"]
        sizes = {**run["encoder"], "window": run["window"], "labels": run["labels"]}
        for kind in PEERS if rules.peers else ():
            logger.info(f"building {kind}")
            try:
                players.append(_player(Entry(kind, kind, Path(kind), None), stack, rules.threads, sizes))
            except InputError as error:
                skipped[kind] = str(error)
        chosen = spread(run["sample"] if texts is None else texts, rules.most_rows)
        if not chosen:
            raise InputError("--texts: expected a file of texts, since the run keeps no sample, got none")
        ready = [player for player in players if player.failed is None]
        length = common_length([player.facts["lengths"] for player in ready], run["length"])
        _give(players, chosen, length)
        _check_alive(players[0])
        rounds = _measure(players, rules, len(chosen), length is not None)
        _check_alive(players[0])
    return Played(players, skipped, len(chosen), length, rounds)


def _player(
    entry: Entry, stack: contextlib.ExitStack, threads: int, sizes: dict[str, Any] | None = None
) -> Player:
    if sizes is None:
        read_through(entry.path)
    worker = stack.enter_context(start_worker(entry.kind, str(entry.path), threads, sizes))
    player = Player(entry.name, entry.kind, worker, {}, entry.bytes)
    try:
        player.facts = worker.listen()
    except Crashed as error:
        player.failed = str(error)
    return player


def _check_alive(run: Player) -> None:
    """Without the run there is nothing to compare with; raises Crashed."""
    if run.failed is not None:
        raise Crashed(f"{run.name}: {run.failed}")


def spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, evenly spread over them; 0 takes all."""
    count = min(most or len(texts), len(texts))
    return [texts[int(place)] for place in np.linspace(0, len(texts) - 1, count).round()]


def common_length(lengths: Sequence[list[int] | None], defaults: int) -> int | None:
    """The longest length that all take, or None.

    Args:
        lengths: That each takes; None: any.
        defaults: Taken where all take any.
    """
    fixed = [set(each) for each in lengths if each is not None]
    return max(set.intersection(*fixed), default=None) if fixed else defaults


def _give(players: Sequence[Player], texts: Sequence[str], length: int | None) -> None:
    """Gives all players the same rows; the run has cut them into ids."""
    none = {"token_ids": None, "padding_mask": None}
    encoded = none if length is None else players[0].ask(do="encode", texts=texts, length=length)
    for player in players:
        player.ask(do="give", texts=texts, **(encoded or none))


def _measure(players: Sequence[Player], rules: Rules, rows: int, has_ids: bool) -> tuple[int, int]:
    alone = jobs([1])
    together = jobs([size for size in sorted(set(rules.batch_sizes)) if size > 1])
    first = _phase("one text at a time", players, alone, rules.seconds, rows, has_ids)
    for player in players:
        player.peak_bytes = (player.ask(do="memory") or {}).get("peak_bytes")
    if not together:
        return first, 0
    share = rules.seconds * len(alone) / len(together)
    return first, _phase("in batches", players, together, share, rows, has_ids)


def _phase(
    name: str, players: Sequence[Player], expected: Sequence[Job], seconds: float, rows: int, has_ids: bool
) -> int:
    turns = sum(player.plays(job, has_ids) for player in players for job in expected)
    logger.info(f"{name}: about {turns * seconds:.0f} s")
    warm(players, expected, min(seconds, WARM_SECONDS), has_ids)
    return play(players, expected, seconds, rows, has_ids)
