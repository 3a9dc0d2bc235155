import dataclasses
from pathlib import Path
from typing import Literal

import pytest

from kmha.errors import InputError
from training.cli.toml_file import toml_flags


@dataclasses.dataclass(frozen=True)
class Section:
    whole_number: int = 1
    share: float = 0.5
    on: bool = True
    orders: tuple[int, ...] = (2,)
    kind: Literal["red", "green"] = "red"
    maybe: bool | None = None
    file: Path | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    config: Path | None = None
    name: str = ""
    quick: bool = False
    section: Section = dataclasses.field(default_factory=Section)


def flags(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "a.toml"
    path.write_text(text, "utf-8")
    return toml_flags(path, Config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\ufeff# only a comment", []),
        ('name = "--x=y z"', ["--name=--x=y z"]),
        ("quick = true", ["--quick"]),
        ("quick = false", ["--no-quick"]),
        ("[section]\non = false", ["--section.no-on"]),
        ("[section]\nwhole_number = 3\nshare = 1", ["--section.whole-number=3", "--section.share=1"]),
        ("section.orders = [2, 3]", ["--section.orders", "2", "3"]),
        ("section = {kind = 'green', maybe = true}", ["--section.kind=green", "--section.maybe=True"]),
        ("section.file = 'a b.txt'", ["--section.file=a b.txt"]),
    ],
)
def test_a_file_is_spelt_as_flags(tmp_path, text, expected):
    assert flags(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam = 1", "{path}: unknown key nam; did you mean name?"),
        ("[sektion]", "{path}: unknown key sektion; did you mean section?"),
        ("[section]\nname = 'x'", "{path}: unknown key section.name; did you mean name?"),
        ("share = 1", "{path}: unknown key share; did you mean section.share?"),
        ("section.quux = 1", "{path}: unknown key section.quux"),
        ("config = 'b.toml'", "{path}: unknown key config"),
        ("section = 3", "{path}: section must be a section, got 3"),
        ("[name]", "{path}: name must be a string, got {{}}"),
        ("section.whole_number = 'x'", "{path}: section.whole_number must be a whole number, got 'x'"),
        ("section.whole_number = 2.0", "{path}: section.whole_number must be a whole number, got 2.0"),
        ("section.whole_number = true", "{path}: section.whole_number must be a whole number, got True"),
        ("section.share = '0.5'", "{path}: section.share must be a number, got '0.5'"),
        ("section.share = true", "{path}: section.share must be a number, got True"),
        ("quick = 1", "{path}: quick must be true or false, got 1"),
        ("section.orders = 2", "{path}: section.orders must be a list, each item a whole number, got 2"),
        (
            "section.orders = ['x']",
            "{path}: section.orders must be a list, each item a whole number, got ['x']",
        ),
        (
            "section.kind = 'gren'",
            "{path}: section.kind must be one of red, green, got 'gren'; did you mean green?",
        ),
        ("section.maybe = 'yes'", "{path}: section.maybe must be true or false, got 'yes'"),
        ("section.file = 3", "{path}: section.file must be a path, got 3"),
        ("name = ", "{path}: expected valid TOML, got an error: Invalid value (at end of document)"),
        (
            "name = 'a'\n[name]",
            "{path}: expected valid TOML, got an error: Cannot overwrite a value (at line 2, column 6)",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        flags(tmp_path, text)
    assert str(caught.value) == message.format(path=tmp_path / "a.toml")


def test_a_missing_file_and_one_in_another_encoding(tmp_path):
    with pytest.raises(InputError, match="--config none.toml: expected a TOML file, No such file"):
        toml_flags(Path("none.toml"), Config)
    (tmp_path / "a.toml").write_bytes(b"# fine\nname = '\xff'\n")
    with pytest.raises(InputError, match=r"a\.toml:2: expected UTF-8 text"):
        toml_flags(tmp_path / "a.toml", Config)
