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
        ("section = 3", "{path}: section must be a section, given 3"),
        ("[name]", "{path}: name must be a string, given {{}}"),
        ("section.whole_number = 'x'", "{path}: section.whole_number must be a whole number, given 'x'"),
        ("section.whole_number = 2.0", "{path}: section.whole_number must be a whole number, given 2.0"),
        ("section.whole_number = true", "{path}: section.whole_number must be a whole number, given True"),
        ("section.share = '0.5'", "{path}: section.share must be a number, given '0.5'"),
        ("section.share = true", "{path}: section.share must be a number, given True"),
        ("quick = 1", "{path}: quick must be true or false, given 1"),
        ("section.orders = 2", "{path}: section.orders must be a list, each item a whole number, given 2"),
        (
            "section.orders = ['x']",
            "{path}: section.orders must be a list, each item a whole number, given ['x']",
        ),
        (
            "section.kind = 'gren'",
            "{path}: section.kind must be one of red, green, given 'gren'; did you mean green?",
        ),
        ("section.maybe = 'yes'", "{path}: section.maybe must be true or false, given 'yes'"),
        ("section.file = 3", "{path}: section.file must be a path, given 3"),
        ("name = ", "{path}: valid TOML wanted: Invalid value (at end of document)"),
        ("name = 'a'\n[name]", "{path}: valid TOML wanted: Cannot overwrite a value (at line 2, column 6)"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        flags(tmp_path, text)
    assert str(caught.value) == message.format(path=tmp_path / "a.toml")


def test_a_missing_file_and_one_in_another_encoding(tmp_path):
    with pytest.raises(InputError, match="--config none.toml: wanted a TOML file, No such file"):
        toml_flags(Path("none.toml"), Config)
    (tmp_path / "a.toml").write_bytes(b"# fine\nname = '\xff'\n")
    with pytest.raises(InputError, match=r"a\.toml:2: UTF-8 text wanted"):
        toml_flags(tmp_path / "a.toml", Config)
