"""From a workdir or an export to text, turns and figures of what it took."""

import functools
import io
import re
import signal

import jax
import numpy as np
import pytest

from kaiju_jax.app import talk
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator as generator_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.decoding.requests import sampling as sampling_lib
from kaiju_jax.interchange import own
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import load
from tests import toys
from tests.experiments import forked

LENGTH = 80
MANNER = talk.Manner(12, sampling_lib.Sampling(seed=3))
BYTES = tokenizer_lib.Bytes()


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run whose masters have moved on from the replica that is served."""
  path = tmp_path_factory.mktemp('run')
  ternary = quantization_config.QuantizationConfig(wire_weights='ternary')
  model = toys.tiny_model(layout='G0', max_length=LENGTH, quantization=ternary)
  toys.write_run(path, model, moved=1.5)
  return path


@pytest.fixture(scope='module')
def loaded(workdir):
  return load.from_workdir(str(workdir))


@pytest.fixture(scope='module')
def generator(loaded):
  decoder = decoder_lib.Decoder(
    loaded.params,
    loaded.config,
    rows=2,
    length=LENGTH,
    replica=loaded.replica,
  )
  return generator_lib.Generator(decoder, BYTES, chunk=8)


def test_an_export_is_read_as_what_the_workdir_holds(
  workdir, loaded, generator, tmp_path
):
  assert loaded.origin == f'{workdir}, step 7'
  assert loaded.tokenizer == ''
  path = tmp_path / 'model.safetensors'
  own.save(path, loaded.params, loaded.config, loaded.replica)
  again = load.from_export(str(path), 'tokenizer.json')
  assert again.config == loaded.config
  assert (again.replica, again.tokenizer) == (None, 'tokenizer.json')
  decoder = decoder_lib.Decoder(
    again.params, again.config, rows=2, length=LENGTH
  )
  jax.tree.map(
    np.testing.assert_array_equal, decoder.params, generator._decoder.params
  )


def test_prompts_are_answered_in_turn_as_each_is_alone(generator):
  prompts = ['a', 'bc', 'def']
  requests = [
    MANNER.request(talk.open_document(BYTES, prompt), index)
    for index, prompt in enumerate(prompts)
  ]
  assert requests[2].tokens.tolist() == [0, *b'def']
  assert [one.sampling.seed for one in requests] == [3, 4, 5]
  texts = [one.text for one in generator.generate(requests)]
  out, pace = io.StringIO(), talk.Pace()
  talk.answer(generator, requests, out, pace)
  assert out.getvalue() == ''.join(
    f'── {index} ──\n{text}\n' for index, text in enumerate(texts)
  )
  assert pace.tokens == 36
  one = io.StringIO()
  talk.answer(generator, requests[1:2], one, talk.Pace())
  assert one.getvalue() == f'{texts[1]}\n'


def lines(*said):
  left = list(said)

  def read():
    if not left:
      raise EOFError
    return left.pop(0)

  return read


def conversed(generator, read, out=None):
  out, notes = out or io.StringIO(), io.StringIO()
  write = functools.partial(talk.write_line, BYTES)
  talk.converse(generator, write, MANNER, read, out, notes)
  assert not generator._decoder.account.open_rows
  return out.getvalue(), notes.getvalue().splitlines()


def test_turns_go_on_from_all_that_was_said(generator):
  text, notes = conversed(generator, lines('hi', 'you'))
  first = MANNER.request(talk.open_document(BYTES, 'hi\n'), 0)
  (hi,) = generator.generate([first])
  second = [*first.tokens, *hi.tokens, *b'you\n']
  (you,) = generator.generate([MANNER.request(np.array(second), 1)])
  assert text == f'{hi.text}\n{you.text}\n'
  assert notes[0].startswith('[4 tokens after 0 in the cache; 12 tokens, the')
  assert notes[1].startswith('[4 tokens after 16 in the cache; 12 tokens, the')


def test_a_full_history_begins_anew_and_long_lines_are_cut_or_refused(
  generator,
):
  text, notes = conversed(generator, lines('x' * 40, 'y' * 40, 'z' * 90, 'w'))
  assert text.count('\n') >= 3
  assert '[54 tokens of history: full, begun anew]' in notes[1]
  assert notes[2].startswith('[42 tokens after 0 in the cache; 12 tokens')
  assert notes[3] == '[54 tokens of history: full, begun anew]'
  assert notes[4] == '[92 tokens, and the cache holds 80: say less]'
  assert notes[5].startswith('[3 tokens after 0 in the cache; 12 tokens')
  _, notes = conversed(generator, lines('x' * 70))
  assert notes[0].startswith('[72 tokens after 0 in the cache; 8 tokens')


class Interrupting(io.StringIO):
  """Sends Ctrl-C, some times, with the third piece of text."""

  def __init__(self, times):
    super().__init__()
    self.times = times
    self.flushed = 0

  def flush(self):
    self.flushed += 1
    if self.flushed == 3:
      for _ in range(self.times):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_an_answer_and_keeps_what_was_said(generator):
  before = signal.getsignal(signal.SIGINT)
  _, notes = conversed(generator, lines('hi', 'you'), Interrupting(1))
  assert signal.getsignal(signal.SIGINT) == before
  assert '; 3 tokens, ' in notes[0]
  assert notes[1].startswith('[4 tokens after 7 in the cache; 12 tokens')


def test_a_second_ctrl_c_ends_the_conversation(generator):
  with pytest.raises(KeyboardInterrupt):
    conversed(generator, lines('hi', 'you'), Interrupting(2))
  assert not generator._decoder.account.open_rows


def test_pace_tells_first_from_later_tokens():
  ticks = iter([10.0, 12.5, 13.0, 13.5])
  pace = talk.Pace(lambda: next(ticks))
  assert str(pace) == 'no tokens'
  assert list(pace.times('abc')) == ['a', 'b', 'c']
  assert str(pace) == '3 tokens, the first after 2.500 s, then 2.0 tokens/s'


def test_bad_logits_of_one_prompt_leave_the_others_text(generator, monkeypatch):
  requests = [
    MANNER.request(talk.open_document(BYTES, prompt), 0)
    for prompt in ('a', 'b')
  ]
  rounds = generator.engine.rounds
  prefill = rounds.prefill

  def broken(chunks, shape):
    done = prefill(chunks, shape)
    if chunks[0].row:
      return done
    return done._replace(packed=done.packed.at[0, 0].set(-1))

  monkeypatch.setattr(rounds, 'prefill', broken)
  out = io.StringIO()
  with pytest.raises(request_lib.BadLogits, match='in row 0, step 0'):
    talk.answer(generator, requests, out, talk.Pace())
  assert '── 1 ──\n' in out.getvalue()
  assert len(out.getvalue()) > 20


@pytest.mark.slow
def test_the_command_answers_a_prompt(workdir, generator):
  words = f'--model={workdir} --prompt=def --max_tokens=12 --chunk=8 --seed=3'
  (done,) = forked.run([['experiments.generate', *words.split()]])
  assert done.returncode == 0, done.stderr[-500:]
  request = MANNER.request(talk.open_document(BYTES, 'def'), 0)
  assert done.stdout == f'{generator.generate([request])[0].text}\n'
  told = done.stderr.splitlines()[-2:]
  assert told[0].startswith(f'{workdir}, step 7; compiled in ')
  assert re.fullmatch(
    r'12 tokens, the first after [\d.]+ s, then [\d.,]+ tokens/s;'
    r' cache of 1 × 16 tokens: [\d,]+ bytes\.',
    told[1],
  )


def test_a_tokenizer_of_another_file_is_refused(workdir):
  words = f'experiments.generate --model={workdir} --prompt=x --tokenizer=t'
  (done,) = forked.run([words.split()], imported=forked.JAX)
  assert done.returncode == 1
  assert done.stderr.startswith('error: --tokenizer=t: ')
