import numpy as np
import pytest
import tensorflow as tf

from export.huggingface import main
from kmha.pretrained.sources import find_checkpoint
from tests.bundles import TEXTS, make_bundle, make_pair_bundle, make_tagger_bundle, one_label_bundle
from tests.command_runs import call
from tests.kmha.pretrained.folders import filled

BERT = {"norm": "post", "ngram_buckets": 0, "num_segments": 2}


def as_bert(bundle):
    """The bundle with an encoder of BERT's form."""
    from kmha.config import EncoderConfig

    config = EncoderConfig.bert(200, 16, 1, num_heads=2, max_length=64, intermediate_dim=24)
    granularity = next(iter(bundle.preprocessor.granularities))
    model = type(bundle.model)({granularity: config}, 1, form="bi", overlap=False, share_weights=False)
    model.build()
    return type(bundle)(model, bundle.preprocessor, ["score"], None)


RUNS = {
    "classify": lambda: make_bundle(**BERT),
    "tag": lambda: make_tagger_bundle(characters=True, **BERT),
    "match": lambda: as_bert(make_pair_bundle()),
}


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("task", RUNS)
def test_a_run_of_each_task_is_written_and_reads_texts_the_same(tmp_path, task, side):
    bundle = RUNS[task]()
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", tmp_path / "out", "--side", side)
    assert (outcome.status, outcome.out) == (0, f"{tmp_path / 'out'}\n"), outcome.err
    checkpoint = find_checkpoint(str(tmp_path / "out"))
    encoder = bundle.model.encoders_of(0)[-1 if side == "b" else 0]
    preprocessor = (
        getattr(bundle.preprocessor, "part", None)
        or getattr(bundle.preprocessor, "parts", [bundle.preprocessor])[0]
    )
    given = preprocessor(tf.constant(TEXTS))
    assert checkpoint.vocabulary.tokens == preprocessor.vocabulary.tokens
    np.testing.assert_allclose(filled(checkpoint)(given), encoder(given), atol=1e-6)


def test_the_two_encoders_of_a_matcher_differ(tmp_path):
    RUNS["match"]().save(tmp_path / "run")
    tables = []
    for side in ("a", "b"):
        assert call(main, tmp_path / "run", tmp_path / side, "--side", side).status == 0
        tables.append(find_checkpoint(str(tmp_path / side)).read_weights()["embedding/tokens/embeddings"])
    assert not np.array_equal(*tables)


def test_an_encoder_without_a_bert_equivalent_is_rejected(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", tmp_path / "new" / "out")
    assert outcome.status == 2
    assert (
        outcome.err
        == f"error: {tmp_path / 'run'}: BERT cannot represent this encoder: norm must be post, got pre\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_existing_folder_is_replaced_only_with_overwrite(tmp_path):
    RUNS["classify"]().save(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("x")
    outcome = call(main, tmp_path / "run", tmp_path / "out")
    assert outcome.status == 2 and "use --overwrite" in outcome.err
    assert (tmp_path / "out" / "old").exists()
    assert call(main, tmp_path / "run", tmp_path / "out", "--overwrite").status == 0
    assert not (tmp_path / "out" / "old").exists()
