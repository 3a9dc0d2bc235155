import dataclasses
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from training.cli.parser import parse
from training.config.config import (
    DataSection,
    EncoderSection,
    FitConfig,
    OptimizerSection,
    TrainSection,
    differences,
    settings,
)
from training.config.validation import check_settings
from training.tasks.settings import ClassifySettings

# Settings of some runs only: of a task, a student, a pretrained encoder, or few labels.
TASKS = ("classify", "match", "tag", "masked_lm", "distill", "finetune", "fewshot")
MOST_SHARED_FIELDS, MOST_TASK_FIELDS = 75, 16


def fields(config) -> list[str]:
    return [
        f"{f.name}.{name}" if name else f.name
        for f in dataclasses.fields(config)
        for name in (
            fields(getattr(config, f.name)) if dataclasses.is_dataclass(getattr(config, f.name)) else [""]
        )
    ]


def through_toml(config: FitConfig, path: Path) -> FitConfig:
    path.write_text(tomli_w.dumps(settings(config)), "utf-8")
    return dataclasses.replace(parse(FitConfig, ["--config", str(path)], "fit"), config=None)


def test_defaults_are_valid_and_are_read_back_unchanged(tmp_path):
    check_settings(FitConfig())
    assert through_toml(FitConfig(), tmp_path / "a.toml") == FitConfig()


def test_the_number_of_settings_is_limited():
    names = fields(FitConfig())
    of_tasks = {task: [name for name in names if name.startswith(f"{task}.")] for task in TASKS}
    assert all(0 < len(each) <= MOST_TASK_FIELDS for each in of_tasks.values())
    assert len(names) - sum(map(len, of_tasks.values())) <= MOST_SHARED_FIELDS


strings = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1)
# Paths have no trailing slash, "." is the empty path, and "None" means no path.
names = st.text(st.characters(categories=["L", "N"]), min_size=1).filter(lambda name: name != "None")


@given(
    separator=strings,
    name=names,
    orders=st.lists(st.integers(2, 9), max_size=3),
    rate=st.floats(1e-9, 10),
    multi_label=st.sampled_from([None, True, False]),
    head_dim=st.none() | st.integers(1, 99),
    baseline=st.booleans(),
)
def test_written_settings_are_read_back_unchanged(
    tmp_path_factory, separator, name, orders, rate, multi_label, head_dim, baseline
):
    config = FitConfig(
        out=Path(name),
        baseline=baseline,
        data=DataSection(train=Path(f"-{name}.csv"), label_separator=separator),
        encoder=EncoderSection(ngram_orders=tuple(orders), head_dim=head_dim),
        classify=ClassifySettings(multi_label=multi_label),
        optimizer=OptimizerSection(learning_rate=rate),
        strategy="mirrored",
        train=TrainSection(jit="on"),
    )
    assert through_toml(config, tmp_path_factory.getbasetemp() / "round.toml") == config


@pytest.mark.parametrize(
    ("data", "folder"),
    [
        (DataSection(), "runs/reviews"),
        (DataSection(train=Path("data/news.jsonl.gz")), "runs/news"),
        (DataSection(tfds="glue/sst2"), "runs/glue"),
        (DataSection(tfds="ag_news_subset:1.0.0"), "runs/ag_news_subset"),
    ],
)
def test_the_run_is_named_after_its_data(data, folder):
    assert FitConfig(data=data).out_folder() == Path(folder)
    assert FitConfig(data=data, out=Path("here")).out_folder() == Path("here")


def test_equal_settings_have_no_differences():
    assert differences({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1]}, "a": 1}) == ""


def test_differences_are_named_as_flags():
    began = {"text": {"max_length": 8, "same": 1}, "seed": 0, "gone": True}
    now = {"text": {"max_length": 9, "same": 1}, "seed": 0, "new": "x"}
    assert differences(began, now) == (
        "--text.max-length 8, got 9; --gone True, got unset; --new unset, got x"
    )


def test_ignored_settings_may_differ():
    assert differences({"a": {"b": 1}, "c": 1}, {"a": {"b": 2}, "c": 2}, ["a.b"]) == "--c 1, got 2"
