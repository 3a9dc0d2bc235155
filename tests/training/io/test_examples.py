import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from training.io import examples as examples_module
from training.io.examples import Example, ExampleSet, label_ids, label_matrix, mixed, write_examples


def example(text: str, *labels: str, place: str = "a.csv:2") -> Example:
    return Example((text,), labels, place)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
label_lists = st.lists(st.sampled_from(["red", "green", "blue", "été"]), max_size=3, unique=True)


@given(table=st.lists(st.tuples(texts, label_lists)), block=st.integers(1, 4), data=st.data())
def test_written_examples_are_read_back_unchanged(tmp_path_factory, table, block, data):
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples_module, "_BLOCK_ROWS", block)
        written = write_examples((example(text, *labels) for text, labels in table), folder)
    assert len(written) == len(written.digests) == len(table)
    rows = np.array(data.draw(st.lists(st.integers(0, len(table) - 1))) if table else [], np.int64)
    assert written.read_texts(rows) == [table[row][0] for row in rows]
    ids, counts = written.local_labels(rows)
    assert ids.dtype == np.int32
    assert counts.tolist() == [len(table[row][1]) for row in rows]
    assert [written.label_names[each] for each in ids] == [label for row in rows for label in table[row][1]]
    assert written.empty_texts == sum(not text.strip() for text, _ in table)


def test_label_names_are_in_order_of_first_occurrence(tmp_path):
    written = write_examples([example("1", "b", "a"), example("2", "c"), example("3", "a")], tmp_path)
    assert written.label_names == ["b", "a", "c"]


def test_a_repeated_label_counts_once(tmp_path):
    written = write_examples([example("1", "a", "b", "a"), example("2", "b", "a")], tmp_path)
    assert written.local_labels(np.arange(2))[1].tolist() == [2, 2]
    assert written.label_digests()[0] == written.label_digests()[1]


@given(rows=st.lists(st.sets(st.sampled_from("abcdef")), min_size=1))
def test_label_digests_are_equal_for_equal_sets_only(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("labels")
    digests = write_examples((example("x", *labels) for labels in rows), folder).label_digests()
    assert digests.dtype == np.uint64
    for labels, digest in zip(rows, digests, strict=True):
        assert (digests == digest).tolist() == [other == labels for other in rows]


def sequence(*labels: str, place: str = "a.conll:1") -> Example:
    return Example(("\n".join("x" * len(labels)),), labels, place, ordered=True)


sequences = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1)


@given(rows=sequences)
def test_the_labels_of_words_keep_their_order(tmp_path_factory, rows):
    written = write_examples((sequence(*labels) for labels in rows), tmp_path_factory.mktemp("ordered"))
    assert written.ordered
    chosen = np.arange(len(rows))[::-1]
    ids, counts = written.local_labels(chosen)
    flat = [label for row in chosen for label in rows[row]]
    assert [written.label_names[each] for each in ids] == flat


@given(rows=sequences)
def test_label_digests_are_equal_for_equal_sequences_only(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("ordered")
    digests = write_examples((sequence(*labels) for labels in rows), folder).label_digests()
    for labels, digest in zip(rows, digests, strict=True):
        assert (digests == digest).tolist() == [other == labels for other in rows]


def test_ordered_labels_cannot_be_mixed_with_others(tmp_path):
    with pytest.raises(ValueError, match="a.csv:2: expected labels all ordered or none, got both"):
        write_examples([sequence("a", "a"), example("x", "a")], tmp_path)
    assert not write_examples([], tmp_path).ordered


def test_text_digests_ignore_white_space_around_the_text_only(tmp_path):
    given_texts = ["a b", " a b\n", "\u3000a b", "a  b", "A b", ""]
    digests = write_examples(map(example, given_texts), tmp_path).digests
    assert digests.dtype == np.uint64
    assert (digests[:3] == digests[0]).all()
    assert len(set(digests[2:].tolist())) == 4


def test_two_texts_for_each_example(tmp_path):
    pairs = [("ab", "c"), ("a", "bc"), ("ab", " c"), ("c", "ab"), ("", "x")]
    written = write_examples((Example(pair, ("1",), "p") for pair in pairs), tmp_path, num_texts=2)
    rows = np.array([3, 0])
    assert written.read_texts(rows) == ["c", "ab"] and written.read_texts(rows, field=1) == ["ab", "c"]
    assert written.digests[0] == written.digests[2]
    assert len(set(written.digests.tolist())) == 4
    assert written.empty_texts == 1


def test_locations_are_stored(tmp_path):
    places = [f"a.csv:{line}" for line in (2, 3, 7)] + ["odd\nname.csv:2"]
    written = write_examples((example("x", "a", place=place) for place in places), tmp_path)
    assert [written.place(row) for row in range(4)] == [*places[:3], "odd name.csv:2"]


def test_an_empty_label_is_refused_and_leaves_no_texts(tmp_path):
    with pytest.raises(InputError, match="a.csv:3: expected a label, got an empty one"):
        write_examples([example("x", "a"), example("y", "", place="a.csv:3")], tmp_path)
    assert not list(tmp_path.glob("texts*"))


def test_another_number_of_texts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 2 texts, got 1"):
        write_examples([example("x", "a")], tmp_path, num_texts=2)


@pytest.fixture
def colors(tmp_path) -> ExampleSet:
    return write_examples(map(example, "1234", ["red", "green", "blue", "ash"]), tmp_path)


def test_label_ids_number_unknown_labels_after_the_known_ones(colors):
    ids, names = label_ids(colors, np.array([3, 0, 1, 2, 0]), ["green", "lost", "red"])
    assert names == ["green", "lost", "red", "ash", "blue"]
    assert ids.dtype == np.int32 and [names[each] for each in ids] == ["ash", "red", "green", "blue", "red"]


def test_label_ids_agree_between_batches(colors):
    labels = ["red"]
    whole, names = label_ids(colors, np.arange(4), labels)
    parts = [label_ids(colors, np.array([row]), labels) for row in range(4)]
    assert [int(ids[0]) for ids, _ in parts] == whole.tolist()
    assert all(part_names == names for _, part_names in parts)


@pytest.mark.parametrize("labels", [(), ("a", "b")])
def test_label_ids_require_one_label_for_each_row(tmp_path, labels):
    with pytest.raises(ValueError, match="expected one label for each row"):
        label_ids(write_examples([example("x", *labels)], tmp_path), np.array([0]), ["a"])


@given(table=st.lists(label_lists), labels=st.permutations(["red", "green", "blue"]))
def test_label_matrix_marks_known_labels_and_counts_the_others(tmp_path_factory, table, labels):
    written = write_examples((example("x", *row) for row in table), tmp_path_factory.mktemp("matrix"))
    rows = np.arange(len(table))[::-1]
    matrix, unknown = label_matrix(written, rows, labels)
    assert matrix.dtype == np.int8
    assert matrix.tolist() == [[int(label in table[row]) for label in labels] for row in rows]
    assert unknown == sum(label not in labels for row in table for label in row)


def test_mixed_numbers_are_distinct():
    values = mixed(np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(values)) == 100_000
    assert len(np.unique(values >> np.uint64(40))) > 99_000


def test_queries_are_distinguished_by_name_or_else_by_first_text(tmp_path):
    def of_query(text: str, query: str | None) -> Example:
        return Example((text, "b"), ("1",), "", query)

    named = write_examples([of_query("x", "1"), of_query("y", "1"), of_query("x", "2")], tmp_path / "n", 2)
    assert named.named_queries and named.queries.dtype == np.uint64
    assert named.queries[0] == named.queries[1] != named.queries[2]
    unnamed = write_examples(
        [of_query("x", None), of_query(" x\n", None), of_query("y", None)], tmp_path / "u", 2
    )
    assert not unnamed.named_queries
    assert unnamed.queries[0] == unnamed.queries[1] != unnamed.queries[2]
    # A name is never treated as a text. A set with names for only some rows has no named queries.
    both = write_examples([of_query("x", "x"), of_query("x", None)], tmp_path / "b", 2)
    assert both.queries[0] != both.queries[1] and not both.named_queries


def test_a_set_names_the_file_it_is_from(tmp_path):
    assert write_examples([example("x", "a", place="f:olds/a.csv:2")], tmp_path).origin == "f:olds/a.csv"
    assert write_examples([], tmp_path).origin == "data"
