"""python -m training.fit [--config FILE.toml] [--data.train FILE] [--data.test FILE] [--out FOLDER] …

Trains a model from a file of examples and writes the run folder: model, vocabulary, settings, scores. Without
data flags it learns the sample of Chinese reviews. `--help` lists every setting.
"""

import json
import sys
from collections.abc import Sequence

from training.cli import parse, run
from training.config import FitConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _fit(parse(FitConfig, argv, "python -m training.fit")))


def _fit(config: FitConfig) -> int:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from training.job import fit
    from training.loop import Diverged, Stopped

    try:
        metrics = fit(config)
    except Stopped as stop:
        print(f"stopped by {stop}; the same command with --resume goes on", file=sys.stderr)
        return 130
    except Diverged as error:
        print(f"error: training diverged, {error}; lower --optimizer.learning-rate", file=sys.stderr)
        return 1
    scores = metrics[metrics["judged_on"]]
    shown = {name: value for name, value in scores.items() if isinstance(value, int | float)}
    base = {name: metrics["baseline"][name] for name in shown if name in metrics.get("baseline", {})}
    line = {"run": str(config.out_folder()), "judged_on": metrics["judged_on"], **shown}
    print(json.dumps(line | ({"baseline": base} if base else {}), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
