"""Names of the signatures, inputs and outputs of exported models. They are part of the file formats."""

SERVING_DEFAULT, PREDICT_TEXT, PREDICT_WORDS = "serving_default", "predict_text", "predict_words"
PREDICT_IDS, PREDICT_IDS_XLA = "predict_ids", "predict_ids_xla"
CLASSIFY, EXPLAIN, EXPLAIN_WORDS = "classify", "explain", "explain_words"
EMBED, EMBED_IDS, EMBED_QUERY, EMBED_QUERY_IDS = "embed", "embed_ids", "embed_query", "embed_query_ids"
RANK, RANK_VECTORS = "rank", "rank_vectors"

TEXT, TEXT_A, TEXT_B = "text", "text_a", "text_b"
WORDS, NUM_WORDS = "words", "num_words"
QUERY, CANDIDATES = "query", "candidates"
# TensorFlow Serving's classify method looks for these three.
INPUTS, CLASSES, SCORES = "inputs", "classes", "scores"

PROBABILITIES, LABEL, LABELS, GIVEN, ABSTAINED = "probabilities", "label", "labels", "given", "abstained"
SCORE, MATCH, ORDER = "score", "match", "order"
TAGS, TAG_IDS, PATH_PROBABILITIES = "tags", "tag_ids", "path_probabilities"
STARTS, ENDS = "starts", "ends"
TOKENS, ATTENTION, WINDOWS, VECTORS = "tokens", "attention", "windows", "vectors"
# The parts of the logits of a model with a linear path.
NGRAMS, LINEAR_LOGITS, ENCODER_LOGITS = "ngrams", "linear_logits", "encoder_logits"
