"""Which tokens a span of characters labels, and which lines are refused."""

import dataclasses
import json

import numpy as np
import pytest

from kaiju_jax.data import chat
from kaiju_jax.data import spans
from kaiju_jax.data import text as text_lib
from tests.data import toys

NAMES = 'rude', 'sad'


def span(text, part, dimension='rude'):
  start = text.index(part)
  return {'start': start, 'end': start + len(part), 'dimension': dimension}


@pytest.fixture(scope='module')
def tokenizers(tmp_path_factory):
  """Bytes, and words of which rare characters take several tokens."""
  pytest.importorskip('tokenizers')
  path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
  text = 'the cat sat, hello there.'
  return toys.BYTES, toys.train_tokenizer(path, text)


def labelled(record, tokenizer, length=64):
  parsed = spans.parse(record, NAMES)
  format = chat.format_of(tokenizer)
  one = spans.LabelledChat('a#1', *parsed)
  return spans.corpus([one], NAMES, tokenizer, format, length)


def said(corpus, tokenizer, dimension):
  """Returns the tokens that are labelled along a dimension, as text."""
  is_labelled_T = corpus.labels[:, dimension] > 0
  return [tokenizer.decode([t]) for t in corpus.tokens[is_labelled_T]]


def test_a_token_that_overlaps_a_span_is_labelled(tokenizers):
  text = 'the cat sat there'
  for part, words in (
    ('cat', [' cat']),
    ('at', [' cat']),
    ('cat sat', [' cat', ' sat']),
    ('t s', [' cat', ' sat']),
    (' ', [' cat']),
  ):
    record = {'text': text, 'spans': [span(text, part)]}
    assert said(labelled(record, tokenizers[1]), tokenizers[1], 0) == words
    found = labelled(record, tokenizers[0])
    assert said(found, tokenizers[0], 0) == list(part)
    assert not found.labels[:, 1].any()


def test_all_tokens_of_a_character_of_several_bytes_are_labelled(tokenizers):
  text = 'the 猫 sat'
  record = {'text': text, 'spans': [span(text, '猫', 'sad')]}
  for tokenizer in tokenizers:
    found = labelled(record, tokenizer)
    is_labelled_T = found.labels[:, 1] > 0
    assert is_labelled_T.sum() >= 3  # Three bytes, of which none is a word.
    assert '猫' in tokenizer.decode(found.tokens[is_labelled_T])
    rest = tokenizer.decode(found.tokens[~is_labelled_T])
    assert rest.replace(' ', '') == 'thesat'


def test_spans_of_a_chat_are_found_between_its_structure(tokenizers):
  texts = 'Be kind.', 'hello 猫 there', 'the cat'
  messages = [
    {'role': role, 'content': text}
    for role, text in zip(chat.ROLES, texts, strict=True)
  ]
  messages[1]['spans'] = [span(texts[1], '猫 th'), span(texts[1], 'o', 'sad')]
  messages[2] |= {'spans': [span(texts[2], texts[2], 'sad')], 'weight': 0.5}
  for tokenizer in tokenizers:
    found = labelled({'messages': messages}, tokenizer)
    format = chat.format_of(tokenizer)
    pairs = list(zip(chat.ROLES, texts))
    np.testing.assert_array_equal(found.tokens, format.document(pairs))
    rude, sad = (''.join(said(found, tokenizer, c)) for c in (0, 1))
    rude = tokenizer.decode(found.tokens[found.labels[:, 0] > 0])
    assert rude.strip().startswith('猫 th')
    assert 'o' in sad and sad.endswith('the cat')
    # A reply's end has a loss, and violates nothing.
    assert found.weights.max() == 0.5 and not found.labels[-1].any()
    assert (found.labels[found.weights > 0, 1] > 0).sum() == len(
      tokenizer.encode(texts[2])
    )


def cleaned_by(format, clean):
  steps = {key: x._replace(clean=clean) for key, x in format.steps.items()}
  return dataclasses.replace(format, steps=steps)


def test_a_message_that_a_template_strips_keeps_its_spans(tokenizers):
  format = cleaned_by(chat.format_of(tokenizers[0]), str.strip)
  located_L2 = format.locate('user', '  ab ')
  message_L = format.message('user', '  ab ')
  assert len(located_L2) == len(message_L)
  text_L2 = located_L2[located_L2[:, 0] < located_L2[:, 1]]
  assert text_L2.tolist() == [[2, 3], [3, 4]]
  # A token of a text that is one of the structure is dropped.
  format = dataclasses.replace(format, structure=np.array([ord('a')]))
  message_L = format.message('user', '  ab ')
  located_L2 = format.locate('user', '  ab ')
  assert len(located_L2) == len(message_L)
  assert located_L2[message_L == ord('b')].tolist() == [[3, 4]]
  format = cleaned_by(format, lambda text: text[::-1])
  with pytest.raises(ValueError, match='control format changes the text'):
    format.locate('user', 'ab')


def test_documents_in_one_row_keep_their_own_labels(tokenizers):
  """A row's labels are those of its documents, wherever they stand."""
  tokenizer = tokenizers[0]
  texts = ['the cat', 'sat', 'a cat', 'nothing at all']
  found = [
    spans.LabelledChat(
      f'a#{n}',
      *spans.parse(
        {'text': one, 'spans': [span(one, 'cat')] if 'cat' in one else []}
      ),
    )
    for n, one in enumerate(texts)
  ]
  corpus = spans.corpus(found, NAMES, tokenizer, None, 16)
  weight_3C = spans.weigh(corpus.labels, 'balanced', 'all')
  beside = spans.Beside(corpus.labels, weight_3C)
  rows = text_lib.Rows(corpus, 16, seed=3, beside=beside)
  seen = 0
  for row in (rows[n] for n in range(2 * len(rows))):
    label_LC = row.extras[spans.LABEL]
    weight_LC = row.extras[spans.WEIGHT]
    assert not weight_LC[row.source < 0].any()
    assert (weight_LC[row.source >= 0] > 0).all()
    for document in set(row.source[row.source >= 0].tolist()):
      # Whole, so that no label stands without the text before it.
      places = np.flatnonzero(row.source == document)
      assert len(places) == len(texts[document]) + 1
      words = tokenizer.decode(row.tokens[places][label_LC[places, 0] > 0])
      assert words == ('cat' if 'cat' in texts[document] else '')
      seen += bool(words)
    assert not label_LC[:, 1].any()
  assert seen >= 2


def test_the_last_token_of_a_span_has_it_whole(tokenizers):
  text = 'the cat sat'
  for tokenizer in tokenizers:
    located_L2 = tokenizer.locate(text)
    # One span ends where the other, of another dimension, goes on.
    found = [
      spans.Span(**span(text, 'the cat')),
      spans.Span(**span(text, 'cat sat', 'sad')),
    ]
    place_LC = spans.label(located_L2, found, NAMES)
    for column, (first, end) in enumerate(((0, 7), (4, 11))):
      last = np.flatnonzero(located_L2[:, 1] >= end)[0]
      inside = np.flatnonzero(located_L2[:, 1] > first)
      place_L = place_LC[:, column]
      assert np.flatnonzero(place_L == spans.LAST).tolist() == [last]
      assert (place_L[inside[0] : last] == spans.WITHIN).all()
      assert not place_L[: inside[0]].any() and not place_L[last + 1 :].any()
  # The tokens of one character: it is whole behind the last of them.
  shared_L2 = np.array([[0, 1], [1, 2], [1, 2], [2, 3]])
  place_LC = spans.label(shared_L2, [spans.Span(0, 2, 'sad')], NAMES)
  assert place_LC[:, 1].tolist() == [1, 1, 2, 0]
  # A span within another's last token ends that one, too.
  both = [spans.Span(0, 1, 'sad'), spans.Span(1, 2, 'sad')]
  place_LC = spans.label(np.array([[0, 2], [2, 3]]), both, NAMES)
  assert place_LC[:, 1].tolist() == [2, 0]


@pytest.mark.parametrize('tokens', spans.TOKENS)
def test_all_dimensions_weigh_the_same_and_so_do_their_labels(tokens):
  places_TC = np.zeros((1000, 2), np.uint8)
  places_TC[:200, 0] = places_TC[:3, 1] = spans.WITHIN
  places_TC[100:200, 0] = places_TC[2, 1] = spans.LAST
  is_counted_TC = places_TC != spans.WITHIN
  if tokens == 'all':
    is_counted_TC[:] = True
  for weights in spans.WEIGHTS:
    weight_3C = spans.weigh(places_TC, weights, tokens)
    extras = spans.Beside(places_TC, weight_3C)(100, 300)
    np.testing.assert_array_equal(extras[spans.LABEL], places_TC[100:300] > 0)
    extras = spans.Beside(places_TC, weight_3C)(0, 1000)
    weight_TC = extras[spans.WEIGHT].astype(float)
    assert ((weight_TC > 0) == is_counted_TC).all()
    if weights == 'equal':
      assert weight_TC.max() == 1
      continue
    np.testing.assert_allclose(weight_TC.sum(axis=0), 1000, rtol=1e-6)
    labelled_C = (weight_TC * extras[spans.LABEL]).sum(axis=0)
    if weights == 'balanced':
      np.testing.assert_allclose(labelled_C, 500, rtol=1e-6)
    else:  # A label's weight over another's is the balanced one's root.
      ratio_C = weight_3C[spans.LAST] / weight_3C[spans.OUTSIDE]
      balanced_3C = spans.weigh(places_TC, 'balanced', tokens)
      square_C = balanced_3C[spans.LAST] / balanced_3C[spans.OUTSIDE]
      np.testing.assert_allclose(ratio_C**2, square_C, rtol=1e-5)
    # Labels that are all alike are as heavy as if there were others.
    for part_TC in places_TC[:, :0], places_TC[200:]:
      assert np.isfinite(spans.weigh(part_TC, weights, tokens)).all()


def test_labels_are_part_of_a_corpus_hash(tokenizers):
  record = {'text': 'the cat', 'spans': [span('the cat', 'cat')]}
  one = labelled(record, tokenizers[0])
  other = labelled(record | {'spans': []}, tokenizers[0])
  assert text_lib.digest(one) != text_lib.digest(other)
  assert text_lib.digest(one) == text_lib.digest(
    labelled(record, tokenizers[0])
  )


GOOD = {'start': 1, 'end': 3, 'dimension': 'rude'}
TURN = {'role': 'user', 'content': 'four'}


def spanned(*changes):
  """Returns a record whose spans are good ones with these changes."""
  return {'text': 'four', 'spans': [GOOD | one for one in changes]}


def said_by(**turn):
  return {'messages': [TURN | turn]}


REFUSED = [
  ([], "'text', 'messages'"),
  ({'text': ''}, 'text='),
  ({'text': 'a\rb'}, 'text: has control'),
  ({'text': 'four', 'spans': 3}, 'spans: must'),
  ({'text': 'four', 'spans': [{'start': 1}]}, r'spans\[0\]\.end'),
  (spanned({'dimension': 'kind'}), r"spans\[0\]\.dimension='kind'"),
  (spanned({}, {'start': 3, 'end': 5}), r'spans\[1\]: start=3, end=5'),
  (spanned({'end': 1}), 'start=1, end=1'),
  (spanned({'start': -1}), 'start=-1'),
  (spanned({'start': 1.0}), r'\.start=1\.0'),
  (spanned({'start': True}), r'\.start=True'),
  (spanned({}, {'start': 2, 'end': 4}), "1…3 and 2…4 of 'rude'"),
  (said_by(spans=[GOOD | {'end': 5}]), r'messages\[0\]\.spans\[0\]: .*end=5'),
  ({'messages': [TURN, TURN]}, r'messages\[1\]: role'),
  (said_by(content='f\rour', spans=[GOOD]), r'\[0\]\.content: has control'),
  (
    {
      'messages': [
        {'role': 'assistant', 'replies': [{'content': 'a', 'kept': True}]}
      ]
    },
    r'messages\[0\]\.replies',
  ),
]


@pytest.mark.parametrize('record, message', REFUSED)
def test_bad_lines_are_named(tmp_path, record, message):
  path = tmp_path / 'labelled.jsonl'
  path.write_text(f'{json.dumps(spanned({}))}\n{json.dumps(record)}\n')
  with pytest.raises(ValueError, match=message) as error:
    spans.read(str(path), NAMES)
  assert str(error.value).startswith(f'{path}, line 2: ')
  assert '\n' not in str(error.value)


def test_a_file_without_a_span_of_a_dimension_is_refused(tmp_path):
  path = tmp_path / 'labelled.jsonl'

  def read(record, *names):
    path.write_text(json.dumps(record) + '\n')
    return spans.read(str(path), *names)

  # Those that touch, and those of two dimensions, do not overlap.
  touching = spanned({}, {'start': 3, 'end': 4})
  with pytest.raises(ValueError, match=f"{path}.*no span of 'sad'"):
    read(touching, NAMES)
  assert len(read(touching, NAMES[:1])) == 1
  with pytest.raises(ValueError, match=f'{path}.*no span;'):
    read({'text': 'four'})
  both = read(spanned({}, {'dimension': 'sad'}), NAMES)
  assert spans.list_dimensions(both) == list(NAMES)


def test_a_text_that_no_row_holds_is_named(tokenizers):
  with pytest.raises(ValueError, match=r'^a#1: has 10 tokens, and rows.*=8'):
    labelled({'text': 'nine char'}, tokenizers[0], 8)
