import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from training.io import conll
from training.io.tables import column_names, read_rows

SENTENCES = "John\tB-PER\nSmith\tI-PER\n\nhere\tO\n"


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, columns=("1", "2")) -> list[tuple[str, list]]:
    rows = read_rows(path, columns)
    return [(row.place.removeprefix(f"{path}:"), [row.values[name] for name in columns]) for row in rows]


TWO = [("1", [["John", "Smith"], ["B-PER", "I-PER"]]), ("4", [["here"], ["O"]])]


@pytest.mark.parametrize("name", ["a.conll", "a.bio", "a.iob", "a.conll.gz", "A.CONLL", "a.conllu"])
def test_a_row_is_a_sentence(tmp_path, name):
    path = write(tmp_path / name, SENTENCES)
    assert read(path) == TWO
    assert column_names(path) == ["1", "2"]
    assert read(path, ["2"]) == [("1", [["B-PER", "I-PER"]]), ("4", [["O"]])]


@pytest.mark.parametrize(
    "content",
    [
        SENTENCES.rstrip("\n"),
        SENTENCES.replace("\n", "\r\n"),
        SENTENCES.replace("\t", " "),
        SENTENCES.replace("\t", "   ").replace("\n", " \n"),
        "\ufeff" + SENTENCES,
        SENTENCES + "\n\n\n",
        SENTENCES.replace("\n\n", "\n \t \n"),
    ],
)
def test_line_ends_marks_and_blanks_do_not_matter(tmp_path, content):
    assert read(write(tmp_path / "a.conll", content)) == TWO


def test_a_sentence_starts_at_its_first_word(tmp_path):
    content = "# one\n-DOCSTART-\t-X-\tO\n\n# two\n#3\na\tO\n\n\n# three\n#tag\tO\nb\tO\n-DOCSTART-\nc\tO\n"
    assert read(write(tmp_path / "a.conll", content)) == [
        ("6", [["a"], ["O"]]),
        ("10", [["#tag", "b"], ["O", "O"]]),
        ("13", [["c"], ["O"]]),
    ]


@pytest.mark.parametrize("line", ["-DOCSTART-", "-DOCSTART- -X- -X- O", "-DOCSTART-\tO", "-DOCSTART-\r"])
def test_a_document_line_ends_a_sentence(tmp_path, line):
    assert read(write(tmp_path / "a.conll", f"{line}\na O\n{line}\nb O\n{line}")) == [
        ("2", [["a"], ["O"]]),
        ("4", [["b"], ["O"]]),
    ]


def test_a_word_may_look_like_a_document_line(tmp_path):
    assert read(write(tmp_path / "a.conll", "-DOCSTART-s O\n# O\n"))[0][1][0] == ["-DOCSTART-s", "#"]


def test_words_that_begin_with_a_hash_are_words(tmp_path):
    path = write(tmp_path / "a.conll", "#first\tO\nword\tO\n\n#second\tB-x\n")
    assert [words for _, (words, _) in read(path)] == [["#first", "word"], ["#second"]]
    path = write(tmp_path / "b.conll", "# a comment here\n#only\tO\n\n#these\tO\n")
    assert [words for _, (words, _) in read(path)] == [["#only"], ["#these"]]


def test_other_white_space_may_be_a_word(tmp_path):
    path = write(tmp_path / "a.conll", "\u3000 O\n\u00a0 O\na\u2028b O\n")
    assert read(path) == [("1", [["\u3000", "\u00a0", "a\u2028b"], ["O", "O", "O"]])]
    assert read(write(tmp_path / "b.conll", "a b\tO\n c\tO\n"))[0][1][0] == ["a b", " c"]


CONLLU = """# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t0\t_\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\t_\t_\t_
2.1\tnever\t_\tADV\tRB\t_\t_\t_\t_\t_
# in the middle
3\tgo\tgo\tVERB\tVB\t_\t1\t_\t_\t_

"""


def test_conllu_lines_without_words_are_skipped(tmp_path):
    path = write(tmp_path / "a.conllu", CONLLU)
    assert column_names(path) == [str(number) for number in range(1, 11)]
    assert read(path, ["2", "4"]) == [("4", [["Do", "n't", "go"], ["AUX", "PART", "VERB"]])]
    rows = read(write(tmp_path / "a.conll", CONLLU.replace("# in the middle\n", "")), ["1"])
    assert rows == [("3", [["1-2", "1", "2", "2.1", "3"]])]


def test_optional_columns(tmp_path):
    path = write(tmp_path / "a.conll", SENTENCES)
    assert [row.values for row in read_rows(path, ["1"], ["1", "3"])] == [
        {"1": ["John", "Smith"]},
        {"1": ["here"]},
    ]


WRONG = [
    ("a\tO\nb\tO\tx\n", "{path}:2: expected 2 columns separated by tabs as in line 1, got 3"),
    ("# x\n\na\tO\nb O\n", "{path}:4: expected 2 columns separated by tabs as in line 3, got 1"),
    ("a b c\n\nd e\n", "{path}:3: expected 3 columns separated by spaces as in line 1, got 2"),
    ("a\n\nb c\n", "{path}:3: expected 1 column separated by spaces as in line 1, got 2"),
    ("a\tO\n# inside\nb\tO\n", "{path}:2: expected 2 columns separated by tabs as in line 1, got 1"),
    ("a\tO\n\n\u3000\n", "{path}:3: expected 2 columns separated by tabs as in line 1, got 1"),
    ("", "{path}: expected sentences with a word on each line, got an empty file"),
    ("\n# x\n-DOCSTART- O\n", "{path}: expected sentences with a word on each line, got only comments"),
    ("a O\rb O\r", "{path}:1: expected lines that end in \\n or \\r\\n, got a lone \\r"),
    (b"a\tO\n\xff\tO\n", "{path}:2: expected UTF-8 text, got byte 0xff at position 1"),
]


@pytest.mark.parametrize("content, message", WRONG)
def test_errors_are_one_line_with_file_and_line(tmp_path, content, message):
    path = write(tmp_path / "a.conll", content)
    with pytest.raises(InputError) as caught:
        list(read_rows(path, ["1"]))
    assert str(caught.value).startswith(message.format(path=path))
    assert "\n" not in str(caught.value)


def test_conllu_of_comments_only(tmp_path):
    with pytest.raises(InputError, match="got only comments"):
        column_names(write(tmp_path / "a.conllu", "# a\tb\n"))


def test_conllu_without_words(tmp_path):
    with pytest.raises(InputError, match="got only comments"):
        list(read_rows(write(tmp_path / "a.conllu", "1-2\tb\n"), ["1"]))


def test_a_column_that_does_not_exist(tmp_path):
    path = write(tmp_path / "a.conll", SENTENCES)
    with pytest.raises(InputError, match="a.conll: expected column '4', got columns 1, 2"):
        list(read_rows(path, ["1", "4"]))


@pytest.mark.parametrize("call", [column_names, lambda path: list(read_rows(path, ["1"]))])
def test_a_missing_file(tmp_path, call):
    with pytest.raises(InputError, match="no such file"):
        call(tmp_path / "none.conll")


def test_a_file_without_blank_lines_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(conll, "MAX_SENTENCE_WORDS", 100)
    path = write(tmp_path / "a.conll", "x\tO\n" * 100 + "\n" + "x\tO\n" * 101)
    with pytest.raises(InputError, match="a.conll:102: expected at most 100 words in a sentence"):
        list(read_rows(path, ["1"]))


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\r\n"), min_size=1)


@given(
    sentences=st.lists(st.lists(st.tuples(words, words), min_size=1, max_size=4), min_size=1, max_size=4),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_written_sentences_are_read_back_unchanged(tmp_path_factory, sentences, end):
    path = tmp_path_factory.mktemp("round") / "a.conll"
    lines, places = [], []
    for sentence in sentences:
        lines += ["# a comment", "#"] if len(lines) % 2 else []
        places.append(len(lines) + 1)
        lines += ["\t".join(word) for word in sentence] + [""]
    # Words of nothing but blanks make blank lines, and one name is that of documents.
    if any(line.strip(" \t") == "" and line for line in lines) or any("-DOC" in line for line in lines):
        return
    path.write_bytes(end.join(lines).encode("utf-8"))
    rows = list(read_rows(path, ["1", "2"]))
    assert [[row.values["1"], row.values["2"]] for row in rows] == [
        [list(column) for column in zip(*sentence, strict=True)] for sentence in sentences
    ]
    assert [row.place for row in rows] == [f"{path}:{place}" for place in places]
