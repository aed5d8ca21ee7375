"""The T5 embedder is the mean of transformers' own encoder over a text.

Needs the extra `t5`; `make interchange` runs it.
"""

import numpy as np
import pytest

from kaiju_jax.runs import embedders

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TEXTS = ['one two', 'three', 'one two three one ' * 200, *['two three'] * 20]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A tiny random T5 with a tokenizer of words, in transformers' format."""
  import tokenizers

  path = tmp_path_factory.mktemp('t5')
  words = {'<pad>': 0, '</s>': 1, '<unk>': 2, 'one': 3, 'two': 4, 'three': 5}
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.WordLevel(words, unk_token='<unk>')
  )
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single='$A </s>', special_tokens=[('</s>', 1)]
  )
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    pad_token='<pad>',
    eos_token='</s>',
    unk_token='<unk>',
  ).save_pretrained(path)
  torch.manual_seed(0)
  config = transformers.T5Config(
    vocab_size=6, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
  )
  transformers.T5EncoderModel(config).save_pretrained(path)
  return path


def test_it_is_the_mean_of_the_encoders_outputs(folder):
  embedder = embedders.parse(f't5:{folder}')
  found = embedder.embed(TEXTS)
  assert found.shape == (len(TEXTS), 16) and found.dtype == np.float32
  model = transformers.T5EncoderModel.from_pretrained(folder).eval()
  ids = {'one': 3, 'two': 4, 'three': 5}
  for text, vector in zip(TEXTS[:3], found):
    tokens = [*(ids[word] for word in text.split())][:511] + [1]
    with torch.inference_mode():
      alone = model(torch.tensor([tokens])).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(vector, alone, atol=1e-5)
  assert np.ptp(found[:3]) > 0.1


def test_a_folder_without_a_t5_is_refused_in_one_line(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(ValueError, match='not a T5: ') as caught:
    embedders.parse(f't5:{tmp_path}')
  assert '\n' not in str(caught.value)
