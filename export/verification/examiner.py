"""Examines exported models: what each answered, how far that is from the bundle, and where it went wrong."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from export.graph.embedding import embeddings
from export.predictors.artefacts import Artefact
from export.predictors.isolated import Answers, ask, ask_layers
from export.predictors.nearest_tensor import first_divergent
from export.verification.differences import (
    as_json,
    failures,
    text_number,
    vector_differences,
    vector_failures,
)
from export.verification.expected_rows import ExpectedRows
from export.verification.expected_sentences import ExpectedSentences
from export.verification.layer_outputs import TOKENIZER
from export.verification.rows import Rows
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from training.io.json_subprocess import Crashed


class Examiner:
    """Compares artefacts with one bundle on the same rows.

    Args:
        bundle: The trained bundle.
        rows: What all answer.
    """

    def __init__(self, bundle: Bundle, rows: Rows):
        self._bundle, self._rows = bundle, rows
        self._expected: Any = (ExpectedSentences if bundle.task == TAG else ExpectedRows)(bundle, rows)
        self.metric = self._expected.metric

    def report(self, artefact: Artefact) -> dict[str, Any]:
        """Everything about one artefact, as JSON values.

        Raises:
            InputError: It cannot be read or its runtime is not installed.
        """
        known = {"artefact": str(artefact.path), "format": artefact.format, "bytes": artefact.bytes}
        try:
            answers = ask(artefact, self._rows.texts)
            wrong = _wrong_shape(answers.probabilities, self._expected.answers)
        except Crashed as error:
            wrong, answers = str(error), None
        if answers is None or wrong is not None:
            return {**known, "passed": False, "failures": [wrong]}
        return {**known, **self._evaluate(artefact, answers)}

    def _evaluate(self, artefact: Artefact, answers: Answers) -> dict[str, Any]:
        facts, expected = answers.facts, self._expected
        longest = facts["lengths"][-1] if facts["lengths"] else None
        wanted, longer = expected.within(longest)
        found, metric, change = expected.compared(wanted, answers.probabilities, longest)
        others = None if answers.ids is None else expected.rows_with_other_ids(answers.ids, longest)
        same_labels = facts["labels"] in (None, self._bundle.labels)
        reasons = failures(
            facts["quantization"], found, change, None if others is None else len(others), same_labels
        )
        vectors, wrong_vectors = self._compared_vectors(answers, longest)
        reasons += wrong_vectors
        worst = expected.row_of(found.worst_row)
        report = {
            "quantization": facts["quantization"],
            "rows": self._rows.real,
            "nasty_rows": len(self._rows.edge_case),
            "lengths": facts["lengths"],
            "rows_longer": int(longer.sum()),
            "rows_with_other_ids": None if others is None else len(others),
            **as_json(found),
            "worst_row": self._rows.place(worst),
            self._rows.task.metric: metric,
            f"{self._rows.task.metric}_change": change,
            **({"vectors": vectors} if vectors else {}),
            "ops": facts["ops"],
            "passed": not reasons,
            "failures": reasons,
        }
        if others:
            return {
                **report,
                "first_divergent_layer": TOKENIZER,
                "differs_first": self._rows.place(others[0]),
            }
        return {**report, **self._where(artefact, answers, worst)} if reasons else report

    def _compared_vectors(self, answers: Answers, longest: int | None) -> tuple[dict[str, Any], list[str]]:
        """What is to be told of the vectors, by name, and why they fail."""
        found, reasons, quantization = {}, [], answers.facts["quantization"]
        if answers.vectors and not embeddings(self._bundle):
            return {}, [f"expected no vectors, got {', '.join(answers.vectors)}"]
        for name, given in answers.vectors.items():
            wanted = self._expected.vectors(text_number(name, self._bundle.preprocessor.num_texts), longest)
            if given.shape != wanted.shape:
                reasons.append(
                    f"{name}: expected vectors of shape {list(wanted.shape)}, got {list(given.shape)}"
                )
                continue
            compared = vector_differences(wanted, given, self._rows.real)
            found[name] = {**asdict(compared), "worst_row": self._rows.place(compared.worst_row)}
            reasons += vector_failures(quantization, name, compared)
        return found, reasons

    def _where(self, artefact: Artefact, answers: Answers, worst: int) -> dict[str, Any]:
        """The first layer that diverges, and how far each is from the nearest tensor."""
        texts = self._expected.probe(worst)
        layers = self._expected.layers(texts, answers.facts["lengths"], answers.ids is not None)
        try:
            errors = ask_layers(artefact, texts, layers)
        except Crashed as error:
            return {"first_divergent_layer": None, "layers": str(error)}
        return {
            "first_divergent_layer": first_divergent(errors, answers.facts["quantization"]),
            "layers": errors,
        }


def _wrong_shape(found: np.ndarray, expected: np.ndarray) -> str | None:
    if found.shape == expected.shape:
        return None
    return f"expected probabilities of shape {list(expected.shape)}, got {list(found.shape)}"


def table(reports: Sequence[dict[str, Any]], metric: float | None) -> list[str]:
    """Lines that show the reports to a reader.

    Args:
        reports: Of `Examiner.report`.
        metric: The bundle's; None where it is not defined.
    """
    header = ("artefact", "weights", "MB", "largest diff.", "same labels", "metric", "change", "")
    own = "" if metric is None else f"{metric:.4f}"
    body = [("the run itself", "", "", "", "", own, "", "")]
    body += [_cells(report) for report in reports]
    widths = [max(len(row[column]) for row in (header, *body)) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, 1, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *body)
    ]
    for report in reports:
        for name, found in report.get("vectors", {}).items():
            lines.append(_vectors(report["artefact"], name, found))
        for reason in report["failures"]:
            lines.append(f"{report['artefact']}: {reason}")
        if report.get("first_divergent_layer"):
            lines.append(f"{report['artefact']}: differs first in {report['first_divergent_layer']}")
        if report.get("rows_longer"):
            lines.append(_longer(report))
    return lines


def _vectors(artefact: str, name: str, found: dict[str, Any]) -> str:
    """How near the vectors are."""
    most = "NaN" if found["max_difference"] is None else f"{found['max_difference']:.1e}"
    cosines = f"cosine {found['mean_cosine']:.6f} on average, {found['least_cosine']:.6f} at the least"
    return f"{artefact}: {name}: vectors differ by at most {most}, {cosines}"


def _longer(report: dict[str, Any]) -> str:
    """What long rows were compared with."""
    longest = report["lengths"][-1]
    if "sentences_with_other_paths" in report:
        what = f"sentences need windows of more than its {longest} tokens", f"says with windows of {longest}"
    else:
        what = f"texts are longer than its {longest} tokens", f"answers to the first {longest}"
    start = f"{report['artefact']}: {report['rows_longer']}"
    return f"{start} {what[0]}; compared with what the run {what[1]}"


def _cells(report: dict[str, Any]) -> tuple[str, ...]:
    size, verdict = f"{report['bytes'] / 1e6:.2f}", "pass" if report["passed"] else "FAIL"
    if "ops" not in report:
        return (report["artefact"], "", size, "", "", "", "", verdict)
    (name,) = (key.removesuffix("_change") for key in report if key.endswith("_change"))
    difference, metric, change = report["max_difference"], report[name], report[f"{name}_change"]
    agreement = report["label_agreement"]
    return (
        report["artefact"],
        "float32" if report["quantization"] == "none" else report["quantization"],
        size,
        "NaN" if difference is None else f"{difference:.1e}",
        "" if agreement is None else f"{agreement:.4f}",
        "" if metric is None else f"{metric:.4f}",
        "" if change is None else f"{change:+.4f}",
        verdict,
    )
