"""python -m benchmarks.more_data_sets --out DATA [--lists DIR] [--fortunes DIR] [--sentiment DIR] …

Makes data sets for `benchmarks.data_sets scores --folder DATA --names …` from texts that can be installed:

- `--lists`, the package lists of apt (`apt-get -o Acquire::Languages=en,zh_CN update`): the section of a Debian package
  by its short (`deb_short`), long (`deb_long`) and Chinese description (`deb_zh`), and its debtags (`deb_tags`, several
  labels).
- `--fortunes`, the folder usr/share/games/fortunes of the packages fortunes, fortunes-min, fortunes-de and fortunes-es:
  the file that a text is from (`fortunes`, `fort_de`, `fort_es`).
- `--sentiment`, the unpacked hutto_ICWSM_2014.tar.gz in the source of the Python package vaderSentiment 3.3.2: whether
  people rated a text as positive, negative or neither (`v_movie`, `v_amazon`, `v_nyt`, `v_tweets`).
- `--wordnet`, the folder usr/share/wordnet of the package wordnet-base: the file that the gloss of a synset is from
  (`gloss`; `gloss_small`, of few synsets), and the hypernym of a noun (`hyper77`, `hyper150`, `hyper400`).
- `--bible`, a folder with verses.txt, the output of `bible -f gen1:1-rev22:21` of the package bible-kjv: the book of a
  verse (`bible`), and the chapter of four verses (`chapters`, 450 labels).

Three rows of ten are test rows. Labels with fewer than 12 rows (`chapters`: 3) and copies of a text are left out.
"""

import argparse
import collections
import csv
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

Rows = list[tuple[str, str]]  # text and label
TEST_SHARE = 0.3
FEWEST_ROWS, FEWEST_IN_FILE, MOST_IN_FILE, FEWEST_TAGGED = 12, 60, 1000, 30
MOST_SHORT, MOST_LONG, MOST_TAGGED_CHARACTERS = 14_000, 7_000, 400
MOST_GLOSSES, MOST_SMALL, MOST_VERSES = 20_000, 3_000, 20_000
HYPERNYMS, MOST_OF_HYPERNYM = (77, 150, 400), 60
CHAPTERS, VERSES_OF_CHAPTER, FEWEST_OF_CHAPTER = 450, 4, 3
# Ratings go from -4 to 4.
LEAST_RATING = 0.5
SENTIMENT = {
    "v_movie": "movieReviewSnippets",
    "v_amazon": "amazonReviewSnippets",
    "v_nyt": "nytEditorialSnippets",
    "v_tweets": "tweets",
}


def write(
    folder: Path,
    name: str,
    rows: Rows,
    column: str = "label",
    most: int | None = None,
    fewest: int = FEWEST_ROWS,
) -> None:
    """Writes train.csv and test.csv, with at most so many rows, and labels with at least `fewest` of them."""
    unique = list({text.lower(): (text, label) for text, label in rows if text}.values())
    order = np.random.default_rng(0).permutation(len(unique))[:most]
    counts = collections.Counter(unique[row][1] for row in order)
    used = [unique[row] for row in order if column == "labels" or counts[unique[row][1]] >= fewest]
    test = int(TEST_SHARE * len(used))
    (folder / name).mkdir(parents=True, exist_ok=True)
    for part, written in (("test", used[:test]), ("train", used[test:])):
        with open(folder / name / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", column), *written])
    print(name, len(used) - test, test, len({label for _, label in used}), sep="\t")


def one_line(text: str) -> str:
    """The text with single blanks only; a line with a dot separates paragraphs of a description."""
    return re.sub(r"\s+", " ", text.replace("\n.\n", "\n")).strip()


def stanzas(lists: Path, pattern: str) -> Iterator[dict[str, str]]:
    """The stanzas of the largest list with such a name, by field."""
    path = max(lists.glob(pattern), key=lambda found: found.stat().st_size)
    content = subprocess.run(
        ["/usr/lib/apt/apt-helper", "cat-file", str(path)], stdout=subprocess.PIPE, check=True
    ).stdout.decode("utf-8", "replace")
    for stanza in content.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line.startswith(" ") and name:
                fields[name] += "\n" + line[1:]
            elif ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
        if fields:
            yield fields


def packages(folder: Path, lists: Path) -> None:
    """Sections and tags of Debian packages, one of each source package."""
    every = [each for each in stanzas(lists, "*_main_binary-*_Packages*") if "Section" in each]
    by_source: dict[str, dict[str, str]] = {}
    for each in every:
        by_source.setdefault(each.get("Source", each["Package"]).split()[0], each)
    first = list(by_source.values())
    long, chinese = (
        {
            each["Package"]: one_line(each.get(f"Description-{language}", ""))
            for each in stanzas(lists, f"*_i18n_Translation-{pattern}*")
            if "Package" in each
        }
        for language, pattern in (("en", "en"), ("zh_CN", "zh*CN"))
    )
    section = {each["Package"]: each["Section"].split("/")[-1] for each in every}
    short = {each["Package"]: each["Description"].split("\n")[0] for each in every if "Description" in each}
    names = [each["Package"] for each in first]
    write(folder, "deb_short", [(short.get(name, ""), section[name]) for name in names], most=MOST_SHORT)
    write(folder, "deb_long", [(long.get(name, ""), section[name]) for name in names], most=MOST_LONG)
    write(folder, "deb_zh", [(chinese.get(name, ""), section[name]) for name in section])
    tagged = []
    for each in first:
        tags = re.findall(r"\b(?:use|works-with)::([\w-]+)", each.get("Tag", ""))
        name = each["Package"]
        tagged.append(
            (f"{short.get(name, '')}. {long.get(name, '')[:MOST_TAGGED_CHARACTERS]}", sorted(set(tags)))
        )
    counts = collections.Counter(tag for _, tags in tagged for tag in tags)
    labels = [(text, "|".join(tag for tag in tags if counts[tag] >= FEWEST_TAGGED)) for text, tags in tagged]
    write(folder, "deb_tags", [row for row in labels if row[1]], column="labels")


def fortunes(folder: Path, source: Path) -> None:
    """The file of a fortune cookie."""
    for name, pattern in (("fortunes", "*"), ("fort_de", "de/*"), ("fort_es", "es/*.fortunes")):
        rows: Rows = []
        for path in sorted(source.glob(pattern)):
            if path.is_file() and path.suffix in ("", ".fortunes"):
                texts = map(one_line, re.split(r"\n%\n", path.read_text("utf-8", "replace")))
                found = [(text, path.stem) for text in texts if 10 < len(text) < 1500]
                if len(found) >= FEWEST_IN_FILE:
                    order = np.random.default_rng(1).permutation(len(found))
                    rows += [found[row] for row in order[: None if name == "fort_es" else MOST_IN_FILE]]
        write(folder, name, rows)


def sentiment(folder: Path, source: Path) -> None:
    """Ratings of four kinds of texts."""
    for name, stem in SENTIMENT.items():
        rows: Rows = []
        for line in (source / f"{stem}_GroundTruth.txt").read_text("utf-8", "replace").splitlines():
            _, rating, text = line.split("\t", 2)
            sign = int(float(rating) > LEAST_RATING) - int(float(rating) < -LEAST_RATING)
            rows.append((text, ("neutral", "positive", "negative")[sign]))
        write(folder, name, [row for row in rows if name != "v_movie" or row[1] != "neutral"])


def wordnet(folder: Path, source: Path) -> None:
    """The lexicographer file and the hypernym of a synset, by its gloss without examples."""
    files: Rows = []
    hypernyms: Rows = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (source / f"data.{part}").read_text("utf-8").splitlines():
            if line.startswith("  "):
                continue
            synset, gloss = line.split("|", 1)
            gloss = re.split(r';\s*"', gloss.strip())[0].strip()
            files.append((gloss, f"l{synset.split()[1]}"))
            hypernym = re.search(r" @ (\d+) n ", synset) if part == "noun" else None
            if hypernym:
                hypernyms.append((gloss, f"h{hypernym[1]}"))
    write(folder, "gloss", files, most=MOST_GLOSSES)
    write(folder, "gloss_small", files, most=MOST_SMALL)
    for labels in HYPERNYMS:
        rows, counts = most_frequent(hypernyms, labels), collections.Counter[str]()
        chosen: Rows = []
        for row in np.random.default_rng(0).permutation(len(rows)):
            counts[rows[row][1]] += 1
            if counts[rows[row][1]] <= MOST_OF_HYPERNYM:
                chosen.append(rows[row])
        write(folder, f"hyper{labels}", chosen)


def bible(folder: Path, source: Path) -> None:
    """The book of a verse and the chapter of four verses."""
    found = re.findall(
        r"^(\d?[A-Za-z]+)(\d+):\d+ (.*)$", (source / "verses.txt").read_text("utf-8"), re.MULTILINE
    )
    write(folder, "bible", [(text, book) for book, _, text in found], most=MOST_VERSES)
    verses = collections.defaultdict(list)
    for book, chapter, text in found:
        verses[f"{book}-{chapter}"].append(text)
    rows = [
        (" ".join(texts[first : first + VERSES_OF_CHAPTER]), chapter)
        for chapter, texts in verses.items()
        for first in range(0, len(texts) - VERSES_OF_CHAPTER + 1, VERSES_OF_CHAPTER)
    ]
    write(folder, "chapters", most_frequent(rows, CHAPTERS), fewest=FEWEST_OF_CHAPTER)


def most_frequent(rows: Rows, labels: int) -> Rows:
    """The rows of so many labels, those with the most rows."""
    chosen = {label for label, _ in collections.Counter(label for _, label in rows).most_common(labels)}
    return [row for row in rows if row[1] in chosen]


def make_sets(
    description: str | None, makers: Mapping[str, Callable[[Path, Path], None]], argv: Sequence[str] | None
) -> int:
    """A command that makes the data sets whose source is given; a maker gets the folder for them and its source."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    for name in makers:
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args(argv)
    for name, make in makers.items():
        source = getattr(options, name)
        if source is not None:
            if not source.is_dir():
                parser.error(f"--{name}: expected a folder, got {source}")
            make(options.out, source)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    makers = {
        "lists": packages,
        "fortunes": fortunes,
        "sentiment": sentiment,
        "wordnet": wordnet,
        "bible": bible,
    }
    return make_sets(__doc__, makers, argv)


if __name__ == "__main__":
    sys.exit(main())
