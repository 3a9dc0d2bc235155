from kmha.config import EncoderConfig
from training.comparison.existing_runs import describe_encoder


def test_a_run_is_describe_encoder_by_its_blocks():
    assert describe_encoder(EncoderConfig(50, 16, 1, 1)) == "attention, 1 head, 1 layer of 16"
    whole = EncoderConfig(50, 16, 2, 4, ngram_buckets=101)
    assert describe_encoder(whole) == "attention, 4 heads, 2 layers of 16, n-grams"
    pruned = EncoderConfig(50, 16, 2, 4, layer_sizes=((3, 9), (1, 5)))
    assert describe_encoder(pruned) == "attention, 3 and 1 heads, 2 layers of 16"
