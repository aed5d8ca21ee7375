"""A prompt enters the files that `docs/rooms.md` lists, and no other."""

import sys

import numpy as np

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import engine as engine_lib
from kaiju_jax.decoding.requests import request as request_lib
from tests import walks
from tests.decoding import toys

ROOM = f'{walks.ROOT}/kaiju_jax/decoding/'
ENGINE = 'engine/engine.py'


def test_a_prompt_enters_the_files_of_its_walk_alone():
  config = toys.small()
  decoder = decoder_lib.Decoder(
    toys.drawn(config), config, rows=2, length=32, page=4
  )
  engine = engine_lib.Engine(decoder, chunk=8)
  entered, calls_back = set(), set()

  def note(frame, event, _):
    name = frame.f_code.co_filename
    if event != 'call' or not name.startswith(ROOM):
      return
    name = name.removeprefix(ROOM)
    entered.add(name)
    caller = frame.f_back
    while name == ENGINE and caller is not None:
      other = caller.f_code.co_filename.removeprefix(ROOM)
      if other == ENGINE:
        break
      if caller.f_code.co_filename.startswith(ROOM):
        calls_back.add((other, frame.f_code.co_name))
      caller = caller.f_back

  def run(prompt):
    one = engine.submit(request_lib.Request(prompt, 3))
    while one.reason is None:
      engine.advance()
    return one

  tokens = np.arange(12, dtype=np.int32)
  run(tokens + 20)  # Compiles.
  sys.setprofile(note)
  try:
    first, again = run(tokens), run([*tokens, 5])
  finally:
    sys.setprofile(None)
  assert first.reused == 0 and again.reused == 12
  listed = walks.listed(walks.section('The walk of a prompt'))
  assert entered == listed and len(entered) <= 19
  assert not calls_back
