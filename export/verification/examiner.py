"""Compares exported models with their bundle: predictions, differences, and the first layer that diverges."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from export.graph import embedded_texts
from export.predictors.artifacts import (
    Artifact,
    Predictions,
    first_divergent,
    layer_errors_isolated,
    predict_isolated,
)
from export.verification.expected import (
    ExpectedRows,
    ExpectedSentences,
    as_json,
    failures,
    text_number,
    vector_differences,
    vector_failures,
)
from export.verification.layer_outputs import TOKENIZER
from export.verification.rows import Rows
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from training.cli.parser import format_table
from training.io.json_subprocess import Crashed


class Examiner:
    """Compares artifacts with one bundle on the same rows."""

    def __init__(self, bundle: Bundle, rows: Rows):
        self._bundle, self._rows = bundle, rows
        self._expected: Any = (ExpectedSentences if bundle.task == TAG else ExpectedRows)(bundle, rows)
        self.metric = self._expected.metric

    def report(self, artifact: Artifact) -> dict[str, Any]:
        """The results of one artifact, as JSON values.

        Raises InputError if the artifact cannot be read or its runtime is not installed.
        """
        about = {"artefact": str(artifact.path), "format": artifact.format, "bytes": artifact.bytes}
        try:
            found = predict_isolated(artifact, self._rows.texts)
        except Crashed as error:
            return {**about, "passed": False, "failures": [str(error)]}
        expected, shape = list(self._expected.predictions.shape), list(found.probabilities.shape)
        if shape != expected:
            wrong = f"expected probabilities of shape {expected}, got {shape}"
            return {**about, "passed": False, "failures": [wrong]}
        return {**about, **self._compare(artifact, found)}

    def _compare(self, artifact: Artifact, predictions: Predictions) -> dict[str, Any]:
        facts, expected = predictions.facts, self._expected
        longest = facts["lengths"][-1] if facts["lengths"] else None
        truncated, longer = expected.truncated_predictions(longest)
        found, metric, change = expected.compare(truncated, predictions.probabilities, longest)
        others = None
        if predictions.ids is not None:
            others = expected.rows_with_other_ids(predictions.ids, longest)
        same_labels = facts["labels"] in (None, self._bundle.labels)
        reasons = failures(
            facts["quantization"], found, change, None if others is None else len(others), same_labels
        )
        vectors, wrong_vectors = self._compare_vectors(predictions, longest)
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
        return {**report, **self._compare_layers(artifact, predictions, worst)} if reasons else report

    def _compare_vectors(
        self, predictions: Predictions, longest: int | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The differences of the vectors by name, and the reasons why they fail."""
        found, reasons, quantization = {}, [], predictions.facts["quantization"]
        if predictions.vectors and not embedded_texts(self._bundle):
            return {}, [f"expected no vectors, got {', '.join(predictions.vectors)}"]
        for name, vectors in predictions.vectors.items():
            expected = self._expected.vectors(text_number(name, self._bundle.preprocessor.num_texts), longest)
            if vectors.shape != expected.shape:
                reasons.append(
                    f"{name}: expected vectors of shape {list(expected.shape)}, got {list(vectors.shape)}"
                )
                continue
            compared = vector_differences(expected, vectors, self._rows.real)
            found[name] = {**asdict(compared), "worst_row": self._rows.place(compared.worst_row)}
            reasons += vector_failures(quantization, name, compared)
        return found, reasons

    def _compare_layers(self, artifact: Artifact, predictions: Predictions, worst: int) -> dict[str, Any]:
        """The first layer that diverges, and each layer's error of the nearest tensor."""
        texts = self._expected.probe(worst)
        layers = self._expected.layers(texts, predictions.facts["lengths"], predictions.ids is not None)
        try:
            errors = layer_errors_isolated(artifact, texts, layers)
        except Crashed as error:
            return {"first_divergent_layer": None, "layers": str(error)}
        return {
            "first_divergent_layer": first_divergent(errors, predictions.facts["quantization"]),
            "layers": errors,
        }


def table(reports: Sequence[dict[str, Any]], metric: float | None) -> list[str]:
    """The lines of a table of reports; the bundle's metric is None where it is not defined."""
    header = ("artifact", "weights", "MB", "largest diff.", "same labels", "metric", "change", "")
    run_metric = "" if metric is None else f"{metric:.4f}"
    body = [("the run itself", "", "", "", "", run_metric, "", "")]
    body += [_cells(report) for report in reports]
    lines = format_table([header, *body])
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


def _vectors(artifact: str, name: str, found: dict[str, Any]) -> str:
    most = "NaN" if found["max_difference"] is None else f"{found['max_difference']:.1e}"
    cosines = f"cosine {found['mean_cosine']:.6f} mean, {found['least_cosine']:.6f} minimum"
    return f"{artifact}: {name}: vectors differ by at most {most}, {cosines}"


def _longer(report: dict[str, Any]) -> str:
    longest = report["lengths"][-1]
    if "sentences_with_other_paths" in report:
        what, reference = "sentences need windows of more than its", "with windows of"
    else:
        what, reference = "texts are longer than its", "for the first"
    start = f"{report['artefact']}: {report['rows_longer']} {what} {longest} tokens"
    return f"{start}; compared with the run's predictions {reference} {longest}"


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
