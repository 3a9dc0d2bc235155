"""The tokens every vocabulary has. A learnt one starts with them, in this order."""

PADDING, UNKNOWN, START, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PADDING, UNKNOWN, START, END, MASK)
