"""Types, operands and attributes of instructions that are written out."""

import pytest

from kaiju_jax.aot.hlo import text

_PROGRAM = """\
HloModule jit_f, is_scheduled=true

%body (p: f32[4]) -> f32[4] {
  ROOT %p.1 = f32[4]{0} parameter(0), metadata={op_name="a, b (c"}
}

ENTRY %main (x: f32[4], y: bf16[2,8]) -> (f32[4], s4[3]) {
  %x = f32[4]{0:T(128)S(1)} parameter(0)
  %y = bf16[2,8]{1,0:T(8,128)(2,1)} parameter(1)
  %c = s32[] constant(-7)
  %start = ((f32[4]{0}, s8[3]{0}), /*index=1*/u32[]{:S(2)}) all-x-start(%x, %y), channel_id=1, note="commas, and )"
  ROOT %t = (f32[4]{0}, s4[3]{0}) tuple(%x, %c), metadata={op_name="jit(f)/t"}
}
"""  # noqa: E501


def test_instructions_are_read_with_layouts_dropped():
  module = text.parse(_PROGRAM)
  main = module.computations[module.entry]
  assert module.entry == 'main'
  assert main.root == 't'
  assert main.instructions['y'].type == text.Array('bf16', (2, 8))
  start = main.instructions['start']
  assert start.opcode == 'all-x-start'
  assert start.operands == ('x', 'y')
  assert start.type == (
    (text.Array('f32', (4,)), text.Array('s8', (3,))),
    text.Array('u32', ()),
  )
  assert start.attribute('channel_id') == '1'
  assert start.attribute('note') == '"commas, and )"'
  assert start.attribute('missing') is None
  assert main.instructions['t'].op_name == 'jit(f)/t'
  assert main.instructions['c'].literal == '-7'
  assert main.parameters[1].name == 'y'
  assert module.computations['body'].root == 'p.1'


@pytest.mark.parametrize(
  ('dtype', 'shape', 'expected'),
  [
    ('f32', (3, 5), 60),
    ('bf16', (3, 5), 30),
    ('u8', (3, 5), 15),
    ('f8e4m3fn', (3, 5), 15),
    ('s4', (3, 5), 8),
    ('pred', (3, 5), 15),
    ('f32', (), 4),
    ('token', (), 0),
  ],
)
def test_bytes_of_an_array(dtype, shape, expected):
  assert text.Array(dtype, shape).bytes == expected


def test_text_of_something_else_is_refused():
  with pytest.raises(ValueError, match='no ENTRY'):
    text.parse('module @jit_f {\n}\n')
