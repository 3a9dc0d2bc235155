"""Sizes of sentences and words, known without TensorFlow."""

# Words of a sentence; its best path is found in one piece.
MOST_WORDS = 2048
# Tokens of a window at the least.
SHORTEST = 8
# Of a longer word the first and the last half of as many characters are read.
LONGEST_SPELLING = 20
# Rows of the table of characters: Latin, Greek, Cyrillic and more have one of their own, others share.
CHARACTERS = 4096
