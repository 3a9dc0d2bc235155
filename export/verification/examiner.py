"""Compares exported models with their bundle: predictions, differences, and the first layer that diverges."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from export.graph import embedded_texts
from export.predictors.artifacts import (
    Artifact,
    Predictions,
    Row,
    layer_errors_isolated,
    load,
    nearest_errors,
    predict_all,
    predict_isolated,
)
from export.verification.expected import ExpectedRows, ExpectedSentences
from export.verification.layer_outputs import TOKENIZER
from export.verification.rows import Rows, unlabeled_rows
from export.verification.tolerances import (
    OFF,
    as_json,
    failures,
    first_divergent,
    text_number,
    vector_differences,
    vector_failures,
)
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CROSS_VALIDATED, TAG
from kmha.errors import InputError
from training.cli.parser import format_table
from training.io.json_subprocess import Crashed


class Examiner:
    """Compares artifacts with one bundle on the same rows; `isolated` ones run in a process of their own."""

    def __init__(self, bundle: Bundle, rows: Rows, isolated: bool = True):
        self._bundle, self._rows, self._isolated = bundle, rows, isolated
        self._expected: Any = (ExpectedSentences if bundle.task == TAG else ExpectedRows)(bundle, rows)
        self.metric = self._expected.metric

    def report(self, artifact: Artifact) -> dict[str, Any]:
        """The results of one artifact, as JSON values.

        Raises InputError if the artifact cannot be read or its runtime is not installed.
        """
        about = {"artifact": str(artifact.path), "format": artifact.format, "bytes": artifact.bytes}
        try:
            predict = predict_isolated if self._isolated else _predict
            found = predict(artifact, self._rows.texts)
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
        found = expected.compare(truncated, predictions.probabilities, longest)
        metric = None if found.not_finite else expected.metric_of(predictions.probabilities)
        before = expected.metric_of(truncated)
        rounding = _change(before, metric)
        others = None
        if predictions.ids is not None:
            others = expected.rows_with_other_ids(predictions.ids, longest)
        same_labels = facts["labels"] in (None, self._bundle.labels)
        count = None if others is None else len(others)
        labeled = self._rows.task is not None
        reasons = failures(facts["quantization"], found, rounding, count, same_labels, labeled)
        vectors, wrong_vectors = self._compare_vectors(predictions, longest)
        reasons += wrong_vectors
        worst = expected.row_of(found.worst_row)
        report = {
            "quantization": facts["quantization"],
            "rows": self._rows.real,
            "sample_rows": self._rows.compared - self._rows.real,
            "edge_case_rows": len(self._rows.edge_case),
            "lengths": facts["lengths"],
            "rows_longer": int(longer.sum()),
            "rows_with_other_ids": count,
            **as_json(found),
            "worst_row": self._rows.place(worst),
            **self._metrics(metric, rounding, _change(expected.metric, before)),
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

    def _metrics(
        self, metric: float | None, rounding: float | None, truncation: float | None
    ) -> dict[str, float | None]:
        """The metric of an exported model and its change from the run's, the sum of rounding and truncation."""
        if self._rows.task is None:
            return {}
        name = self._rows.task.metric
        change = _change(self.metric, metric)
        parts = {"change": change, "rounding": rounding, "truncation": truncation}
        return {name: metric, **{f"{name}_{part}": value for part, value in parts.items()}}

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
            compared = vector_differences(expected, vectors, self._rows.compared)
            found[name] = {**asdict(compared), "worst_row": self._rows.place(compared.worst_row)}
            reasons += vector_failures(quantization, name, compared)
        return found, reasons

    def _compare_layers(self, artifact: Artifact, predictions: Predictions, worst: int) -> dict[str, Any]:
        """The first layer that diverges, and each layer's error of the nearest tensor."""
        texts = self._expected.probe(worst)
        layers = self._expected.layers(texts, predictions.facts["lengths"], predictions.ids is not None)
        try:
            errors = (layer_errors_isolated if self._isolated else _layer_errors)(artifact, texts, layers)
        except Crashed as error:
            return {"first_divergent_layer": None, "layers": str(error)}
        return {
            "first_divergent_layer": first_divergent(errors, predictions.facts["quantization"]),
            "layers": errors,
        }


def check_export(bundle: Bundle, artifact: Artifact, final: Path) -> dict[str, Any]:
    """Compares an unpublished export with its bundle by the rule of `export.verify`, on rows that it also compares.

    Returns the report of `Examiner`. Raises InputError, with the path where it would be published, if the rule fails.
    """
    report = Examiner(bundle, unlabeled_rows(bundle), isolated=False).report(artifact)
    if report["passed"]:
        return {**report, "artifact": str(final)}
    layer, exact = report.get("first_divergent_layer"), report.get("quantization") == "none"
    place = f"; differs first in {layer}" if layer else ""
    hint = "" if exact else "; use another --quantize"
    raise InputError(f"{final}: {'; '.join(report['failures'])}{place}. Nothing was written{hint}.")


def _predict(artifact: Artifact, texts: Sequence[Row]) -> Predictions:
    return predict_all(load(artifact), texts)


def _layer_errors(
    artifact: Artifact, texts: Sequence[Row], layers: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    return nearest_errors(layers, load(artifact).tensors(texts))


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def summary(bundle: Bundle, report: dict[str, Any]) -> list[str]:
    """The differences of a report of `check_export`, as lines for the terminal."""
    largest, p999, off = (report[name] for name in ("max_difference", "p999_difference", "share_off"))
    agreement = report["label_agreement"]
    same = "" if agreement is None else f", {agreement:.4f} of the labels are equal"
    lines = [
        f"{report['sample_rows']} rows of the run's sample and {report['edge_case_rows']} edge cases: largest"
        f" difference {largest:.1e}, 99.9th percentile {p999:.1e}, {off:.4f} off by more than {OFF}{same}"
    ]
    if bundle.details.get(CROSS_VALIDATED) and report["quantization"] != "none":
        lines.append(
            "the sample of this run are training texts, which show smaller differences than others: check the file"
            " with python -m export.verify RUN FILE --data TEST"
        )
    if report["rows_longer"]:
        lines.append(_longer(report))
    return lines


def table(reports: Sequence[dict[str, Any]], metric: float | None) -> list[str]:
    """The lines of a table of reports; the bundle's metric is None where it is not defined."""
    differences = ("largest diff.", "99.9 %", f"off by {OFF}")
    header = (
        "artifact",
        "weights",
        "MB",
        *differences,
        "same labels",
        "metric",
        "rounding",
        "truncation",
        "",
    )
    body = [("the run itself", *[""] * 6, _number(metric, "{:.4f}"), "", "", "")]
    body += [_cells(report) for report in reports]
    lines = format_table([header, *body])
    for report in reports:
        for name, found in report.get("vectors", {}).items():
            lines.append(_vectors(report["artifact"], name, found))
        for reason in report["failures"]:
            lines.append(f"{report['artifact']}: {reason}")
        if report.get("first_divergent_layer"):
            lines.append(f"{report['artifact']}: differs first in {report['first_divergent_layer']}")
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
    start = f"{report['artifact']}: {report['rows_longer']} {what} {longest} tokens"
    return f"{start}; compared with the run's predictions {reference} {longest}"


def _cells(report: dict[str, Any]) -> tuple[str, ...]:
    size, verdict = f"{report['bytes'] / 1e6:.2f}", "pass" if report["passed"] else "FAIL"
    if "ops" not in report:
        return (report["artifact"], "", size, *[""] * 7, verdict)
    (name,) = (key.removesuffix("_change") for key in report if key.endswith("_change"))
    return (
        report["artifact"],
        "float32" if report["quantization"] == "none" else report["quantization"],
        size,
        _number(report["max_difference"], "{:.1e}", "NaN"),
        _number(report["p999_difference"], "{:.1e}", "NaN"),
        f"{report['share_off']:.4f}",
        _number(report["label_agreement"], "{:.4f}"),
        _number(report[name], "{:.4f}"),
        _number(report[f"{name}_rounding"], "{:+.4f}"),
        _number(report[f"{name}_truncation"], "{:+.4f}"),
        verdict,
    )


def _number(value: float | None, form: str, none: str = "") -> str:
    return none if value is None else form.format(value)
