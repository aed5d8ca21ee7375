"""Cards in and out; what hostile ones are refused for, and at what cost."""

import base64
import io
import json
import random
import struct
import time
import tracemalloc
import zlib

import numpy as np
from PIL import Image
from PIL import PngImagePlugin
import pytest

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import card_png
from kaiju_jax.characters.cards import cards
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from tests.characters.cards import png
from tests.serving import random_fields

V1 = {
  'name': 'Ada',
  'description': 'An engineer.\r\n<b>Bold</b>',
  'personality': 'dry',
  'scenario': 'A <script>alert(1)</script> workshop.',
  'first_mes': 'Hello, {{user}}.',
  'mes_example': '<START>\n{{user}}: hi\n{{char}}: hello',
}
V2 = {
  'spec': 'chara_card_v2',
  'spec_version': '2.0',
  'name': 'a copy for programs that read v1',
  'data': {
    **V1,
    'creator_notes': 'Enjoy.',
    'system_prompt': 'Stay dry. {{original}}',
    'post_history_instructions': 'Be brief.',
    'alternate_greetings': ['Hm?', 'Who is there?'],
    'tags': ['science'],
    'creator': 'Bo',
    'character_version': '1.1',
    'extensions': {'world': 'London', 'depth_prompt': {'depth': 4}},
    'character_book': {
      'entries': [
        {
          'keys': ['engine'],
          'secondary_keys': ['steam'],
          'selective': True,
          'content': 'It runs on steam.',
          'extensions': {},
          'enabled': True,
          'insertion_order': 7,
          'comment': 'about engines',
          'use_regex': True,
        },
        {'keys': [], 'content': 'It is 1843.', 'constant': True},
      ],
      'extensions': {},
    },
  },
}
FIELDS_V1 = card_fields.Fields(
  name='Ada',
  description='An engineer.\n<b>Bold</b>',
  personality='dry',
  scenario='A <script>alert(1)</script> workshop.',
  greeting='Hello, {{user}}.',
  examples='<START>\n{{user}}: hi\n{{char}}: hello',
)
FIELDS_V2 = card_fields.Fields(
  **{
    **vars(FIELDS_V1),
    'notes': 'Enjoy.',
    'system_prompt': 'Stay dry. {{original}}',
    'post_history': 'Be brief.',
    'alternate_greetings': ('Hm?', 'Who is there?'),
    'tags': ('science',),
    'creator': 'Bo',
    'version_name': '1.1',
    'extensions': {'world': 'London', 'depth_prompt': {'depth': 4}},
    'lore': (
      card_fields.Lore(
        keys=('engine',),
        content='It runs on steam.',
        secondary_keys=('steam',),
        order=7,
        name='about engines',
        other={'use_regex': True},
      ),
      card_fields.Lore(content='It is 1843.', is_constant=True),
    ),
  }
)


def _v2(**data):
  return {**V2, 'data': {**V2['data'], **data}}


def _by_pillow(**texts):
  """A PNG of another maker; {keyword: (kind, card)}."""
  info = PngImagePlugin.PngInfo()
  for keyword, (kind, card) in texts.items():
    text = base64.b64encode(png.encode(card)).decode()
    if kind == 'iTXt':
      info.add_itxt(keyword, text, lang='en', tkey='x', zip=False)
    elif kind == 'zipped iTXt':
      info.add_itxt(keyword, text, zip=True)
    else:
      info.add_text(keyword, text, zip=kind == 'zTXt')
  picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
  out = io.BytesIO()
  picture.save(out, 'PNG', pnginfo=info)
  return out.getvalue()


def test_version_1():
  assert cards.read(png.encode(V1)) == cards.Card(FIELDS_V1, 'v1', ())
  assert cards.read(b'\xef\xbb\xbf' + png.encode(V1)).fields == FIELDS_V1


def test_a_picture_that_is_not_kept_is_noted():
  assert cards.read(_by_pillow(chara=('tEXt', V2))).notes == (
    'picture: not kept; an exported card shows a drawn pattern',
  )
  # An export's own pattern is drawn again.
  assert cards.read(cards.to_png(FIELDS_V2)).notes == ()


def test_version_2():
  assert cards.read(png.encode(V2)) == cards.Card(FIELDS_V2, 'v2', ())
  without = {'data': V2['data']}
  assert cards.read(png.encode(without)).fields == FIELDS_V2


def test_version_3():
  card = {
    'spec': 'chara_card_v3',
    'spec_version': '3.1',
    'data': {
      **V2['data'],
      'nickname': 'A.',
      'assets': [{'type': 'icon', 'uri': 'https://example.com/a.png'}],
      'group_only_greetings': [],
      'extensions': None,
    },
  }
  read = cards.read(png.encode(card))
  assert read.spec == 'v3'
  assert read.fields == card_fields.Fields(
    **{
      **vars(FIELDS_V2),
      'nickname': 'A.',
      'extensions': {},
      'other': {'data': {'assets': [{'type': 'icon'}]}},
    }
  )
  assert read.notes == (
    'spec_version 3.1: newer than 3.0',
    'data.assets[0].uri: an address, dropped',
  )


@pytest.mark.parametrize('kind', ['tEXt', 'zTXt', 'iTXt', 'zipped iTXt'])
def test_a_png_of_another_maker(kind):
  assert cards.read(_by_pillow(chara=(kind, V2))).fields == FIELDS_V2
  assert cards.read(_by_pillow(Chara=(kind, V1))).fields == FIELDS_V1


@pytest.mark.parametrize('order', [('ccv3', 'chara'), ('chara', 'ccv3')])
def test_version_3_counts_where_a_png_has_both(order):
  other = {'spec': 'chara_card_v3', 'data': {'name': 'Newer'}}
  texts = {'ccv3': ('tEXt', other), 'chara': ('tEXt', V2)}
  read = cards.read(_by_pillow(**{name: texts[name] for name in order}))
  assert read.fields == card_fields.Fields(name='Newer')
  assert read.spec == 'v3'


def test_other_programs_leave_out_the_base64_and_append_bytes():
  bare = png.chunk(b'iTXt', b'chara\0\0\0\0\0' + png.encode(V1))
  assert cards.read(png.png(bare) + b'trailing').fields == FIELDS_V1
  wrapped = base64.encodebytes(png.encode(V1))
  assert cards.read(png.png(png.chunk(b'tEXt', b'chara\0' + wrapped))).fields
  twice = png.png(png.text(V1), png.text(V1))
  assert cards.read(twice).fields == FIELDS_V1


def test_what_executes_or_lies_elsewhere_is_dropped_and_listed():
  read = cards.read(
    png.encode(
      _v2(
        extensions={
          'regex_scripts': [{'findRegex': '/a/'}],
          'risuai': {'customScripts': [1], 'triggerscript': 'x', 'tone': 3},
          'TavernHelper_scripts': ['x'],
          'backgroundHTML': '<p>',
          'description': 'a transcript',
          'avatar': 'https://example.com/a.png',
          'list': ['data:text/html,x', 'fine', '<iframe src=x>'],
          'empty_scripts': [],
        },
        character_book={
          'recursive_scanning': True,
          'entries': [
            {'keys': ['/a+/i', 'b'], 'content': 'x', 'use_regex': True},
            {'keys': ['a'], 'extensions': {'automation_id': 'x', 'delay': 1}},
          ],
        },
        source=['https://example.com'],
      )
    )
  )
  assert read.fields.extensions == {
    'risuai': {'tone': 3},
    'description': 'a transcript',
    'list': ['fine'],
    'empty_scripts': [],
  }
  assert read.fields.lore[0].keys == ('/a+/i', 'b')
  assert read.fields.lore[1].other == {'extensions': {'delay': 1}}
  assert sorted(read.notes) == [
    'data.character_book.entries[0].keys: patterns (regex) are not run',
    'data.character_book.entries[1].extensions.automation_id: may execute,'
    ' dropped',
    'data.character_book.recursive_scanning: lore is not searched for keys',
    'data.extensions.TavernHelper_scripts: may execute, dropped',
    'data.extensions.avatar: an address, dropped',
    'data.extensions.backgroundHTML: may execute, dropped',
    'data.extensions.list[0]: an address, dropped',
    'data.extensions.list[2]: markup, dropped',
    'data.extensions.regex_scripts: may execute, dropped',
    'data.extensions.risuai.customScripts: may execute, dropped',
    'data.extensions.risuai.triggerscript: may execute, dropped',
    'data.source[0]: an address, dropped',
  ]


def test_signs_within_text_are_text():
  text = '[[{{,,"\\' * 8_000
  data = png.encode({**V1, 'scenario': text})
  assert cards.read(data).fields.scenario == text


def test_notes_are_bounded():
  other = {f'x{n}': '<b>' for n in range(300)}
  read = cards.read(png.encode({**V1, **other}))
  assert len(read.notes) == 201
  assert read.notes[-1] == 'and more'


DEEP = b'{"name":' + b'[' * 39 + b']' * 39 + b'}'
BOMB = png.png(
  png.chunk(b'zTXt', b'chara\0\0' + zlib.compress(bytes(50 * 2**20), 9))
)
MANY = b'{"name":"a","x":[' + b'[],' * 340_000 + b'[]]}'
QUOTES = b'{"name":"' + b'\\"' * 500_000
LARGE = {
  **V1,
  'description': '\U0001f409' * 60_000,
  'x': '\U0001f409' * 150_000,
}
HEAD = card_png.SIGNATURE
GOOD = png.png(png.text(V1))
CODE = zlib.compress(b'{' * 99)[:-6]
BOMBS = b'ccv3\0\1\0\0\0' + zlib.compress(bytes(9 * 2**20), 9)
SIGNED = b'chara\0!' + base64.b64encode(png.encode(V1))


def _chunked(kind, data):
  return png.png(png.chunk(kind, data))


HOSTILE = {
  'empty': (b'', 'json'),
  'large JSON': (b' ' * (2**20 + 1), 'size'),
  'large PNG': (HEAD + bytes(8 * 2**20), 'size'),
  'JPEG': (b'\xff\xd8\xff\xe0' + bytes(99), 'signature'),
  'zip': (b'PK\x03\x04' + bytes(99), 'signature'),
  'signature': (GOOD.replace(b'\r\n', b'\n', 1), 'signature'),
  'signature alone': (HEAD, 'truncated'),
  'no end': (GOOD[:-12], 'truncated'),
  'within a head': (GOOD[:39], 'truncated'),
  'within a chunk': (GOOD[:90], 'truncated'),
  'chunk too long': (png.png(struct.pack('>I', 2**31) + b'tEXt'), 'truncated'),
  'CRC of the text': (png.png(png.text(V1)[:-1] + b'\0'), 'checksum'),
  'CRC of the pixels': (GOOD.replace(b'IDAT', b'IDAU'), 'checksum'),
  'type': (_chunked(b'te t', b''), 'chunks'),
  'no header': (HEAD + png.text(V1) + png.END, 'chunks'),
  'two headers': (png.png(png.HEADER), 'chunks'),
  'short header': (HEAD + png.chunk(b'IHDR', b'') + png.END, 'chunks'),
  'many chunks': (png.png(*[png.chunk(b'tEXt', b'')] * 10_001), 'chunks'),
  'no pixels': (HEAD + png.HEADER + png.END, 'picture'),
  'wide': (HEAD + png.header(width=9000), 'picture'),
  'odd bits': (HEAD + png.header(bits=3, colour=2), 'picture'),
  'compression 1': (HEAD + png.header(compression=1), 'picture'),
  'filter 1': (HEAD + png.header(filter=1), 'picture'),
  'interlace 2': (HEAD + png.header(interlace=2), 'picture'),
  'no card': (_chunked(b'tEXt', b'comment\0a'), 'missing'),
  'no NUL': (_chunked(b'tEXt', b'chara'), 'missing'),
  'two cards': (png.png(png.text(V1), png.text(V2)), 'ambiguous'),
  'bomb': (BOMB, 'inflated'),
  'bomb in iTXt': (_chunked(b'iTXt', BOMBS), 'inflated'),
  'not zlib': (_chunked(b'zTXt', b'chara\0\0xxxx'), 'inflated'),
  'half zlib': (_chunked(b'zTXt', b'chara\0\0' + CODE), 'truncated'),
  'compression': (_chunked(b'zTXt', b'chara\0\1'), 'chunks'),
  'malformed iTXt': (_chunked(b'iTXt', b'chara\0\0\0en'), 'chunks'),
  'long text': (_chunked(b'tEXt', b'chara\0' + b'A' * 1_200_000), 'size'),
  'not base64': (_chunked(b'tEXt', b'chara\0a-b_'), 'base64'),
  'base64 with other signs': (_chunked(b'tEXt', SIGNED), 'base64'),
  'not UTF-8': (b'{"name":"\xff"}', 'encoding'),
  'UTF-16': (json.dumps(V1).encode('utf-16'), 'encoding'),
  'not JSON': (b'{"name":"Ada",}', 'json'),
  'deep': (DEEP, 'depth'),
  'very deep': (b'[' * 40_000, 'depth'),
  'many values': (MANY, 'values'),
  'quotes': (QUOTES, 'json'),
  'NaN': (b'{"name":"a","x":NaN}', 'number'),
  'Infinity': (b'{"name":"a","x":[-Infinity]}', 'number'),
  '1e999': (b'{"name":"a","x":1e999}', 'number'),
  'digits': (b'{"name":"a","x":' + b'1' * 9_000 + b'}', 'number'),
  'name twice': (b'{"name":"a","name":"b"}', 'duplicate'),
  'key twice': (b'{"name":"a","x":{"y":1,"z":2,"y":1}}', 'duplicate'),
  'a list': (b'[1]', 'type'),
  'a number': (b'3', 'type'),
  'nameless': (png.encode({**V1, 'name': ''}), 'nameless'),
  'blank name': (png.encode({**V1, 'name': ' \n\u2028 '}), 'nameless'),
  'without a name': (b'{}', 'nameless'),
  'other JSON': (b'{"a": 1}', 'nameless'),
  'name of another type': (png.encode({**V1, 'name': [['a']]}), 'type'),
  'long': (png.encode({**V1, 'description': 'x' * 70_000}), 'limit'),
  'many entries': (
    png.encode(_v2(character_book={'entries': [{}] * 501})),
    'entries',
  ),
}


@pytest.mark.parametrize('name', HOSTILE)
def test_a_hostile_card_is_refused_by_its_fault(name):
  data, fault = HOSTILE[name]
  with pytest.raises(cards.CardError) as error:
    cards.read(data)
  assert _seconds(data) < _PATIENCE
  assert error.value.fault == fault, str(error.value)
  # What is shown is short and plain, whatever the card holds.
  assert len(str(error.value)) < 300
  assert str(error.value).isprintable()


# As large as cards can be, in what Python takes most room for.
LARGEST = {
  'texts': png.encode(LARGE)[: 2**20],
  'dragons': json.dumps(LARGE, ensure_ascii=False).encode(),
  # One character of four bytes makes all characters take four.
  'one dragon': '{"name":"a","x":"🐉'.encode() + b'x' * 1_048_000 + b'"}',
  'values': b'{"name":"a","x":[' + b'{},' * 11_900 + b'{}]}',
  'keys': png.encode({'name': 'a', **{f'x{n}': '' for n in range(23_900)}}),
  'notes': png.encode({'name': 'a', **{f'x{n}': 1 for n in range(23_900)}}),
  'numbers': b'{"name":"a","x":[' + b'1.5e3,' * 23_900 + b'1]}',
  'lore': png.encode(
    _v2(character_book={'entries': [{'keys': ['a'] * 45}] * 500})
  ),
  'PNG': png.png(
    png.text(LARGE | {'x': 'x' * 20_000}), png.chunk(b'teSt', bytes(7_200_000))
  ),
}


@pytest.mark.parametrize('name', [*LARGEST, 'bomb', 'many values', 'quotes'])
def test_a_card_costs_little_memory_and_time(name):
  data = LARGEST[name] if name in LARGEST else HOSTILE[name][0]
  assert _seconds(data) < _PATIENCE
  tracemalloc.start()
  try:
    _read(data)
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
  finally:
    tracemalloc.stop()


# A card takes 80 ms at most on a quiet core (results/server.md); a shared one
# takes several times as long.
_PATIENCE = 0.25


def _seconds(data):
  """The processor's time; of five, because others share the processor."""
  spent = []
  for _ in range(5):
    begun = time.thread_time()
    _read(data)
    spent.append(time.thread_time() - begun)
  return min(spent)


def _read(data):
  try:
    return cards.read(data)
  except cards.CardError:
    return None


def test_mutated_cards_are_read_or_refused():
  rng = random.Random(0)
  seeds = [png.encode(V1), png.encode(V2), png.png(png.text(V2))]
  seeds.append(cards.to_png(FIELDS_V2))
  seeds += [_by_pillow(chara=(kind, V2)) for kind in ('zTXt', 'zipped iTXt')]
  tokens = [b'"', b'{', b']', b',', b'null', b'1e9', b'\\u', b'\0', b'\xff']
  slowest = 0
  for _ in range(4000):
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
      at = rng.randrange(len(data))
      match rng.randrange(4):
        case 0:
          data[at] = rng.randrange(256)
        case 1:
          del data[at : at + rng.randint(1, 30)]
        case 2:
          data[at:at] = rng.choice(tokens)
        case 3:
          other = rng.choice(seeds)
          data[at : at + 9] = other[at % len(other) :][:9]
    if rng.random() < 0.7:
      data = _mended(data)
    begun = time.thread_time()
    read = _read(bytes(data))
    slowest = max(slowest, time.thread_time() - begun)
    if read is not None:
      card_fields.check(read.fields)
  assert slowest < _PATIENCE


def _mended(data):
  """Sets the CRCs right, so that mutations reach what lies behind them."""
  at = 8
  while data[:4] == b'\x89PNG' and at + 12 <= len(data):
    end = at + 8 + int.from_bytes(data[at : at + 4])
    data[end : end + 4] = struct.pack('>I', zlib.crc32(data[at + 4 : end]))
    at = end + 4
  return data


def test_what_is_exported_is_imported_equal():
  rng = random.Random(2)
  format = chat.format_of(tokenizer_lib.Bytes())
  for _ in range(150):
    fields = random_fields.draw(rng)
    prefix = prompt.prefix(fields, format)
    for data in (
      *(cards.to_json(fields, spec) for spec in ('v2', 'v3')),
      cards.to_png(fields),
    ):
      read = cards.read(data)
      assert read.fields == fields
      np.testing.assert_array_equal(prompt.prefix(read.fields, format), prefix)
  assert cards.read(cards.to_json(fields, 'v2')).spec == 'v2'
  assert cards.read(cards.to_png(fields)).spec == 'v3'


def test_the_largest_fields_are_exported_and_imported():
  lore = card_fields.Lore(('x' * 200,) * 4, 'x', name='x' * 100)
  for large in (
    {'alternate_greetings': ('"\n' * 32_000,) * 4},
    {'lore': (lore,) * 480},
  ):
    fields = card_fields.Fields(name='A', **large)
    for data in cards.to_json(fields), cards.to_png(fields):
      assert cards.read(data).fields == fields


def test_another_program_reads_what_is_exported():
  picture = Image.open(io.BytesIO(cards.to_png(FIELDS_V2)))
  picture.load()
  assert picture.size == (128, 128)
  assert len(picture.convert('RGB').getcolors()) == 2
  v2, v3 = (
    json.loads(base64.b64decode(picture.text[name]))
    for name in ('chara', 'ccv3')
  )
  assert (v2['spec'], v2['spec_version']) == ('chara_card_v2', '2.0')
  assert (v3['spec'], v3['spec_version']) == ('chara_card_v3', '3.0')
  for name, value in V1.items():
    assert v2['data'][name] == chat.strip(value)
  assert v2['data']['character_book']['entries'][0]['selective'] is True
  other = card_fields.Fields(name='Bo')
  assert cards.to_png(other) != cards.to_png(card_fields.Fields(name='Al'))


def test_an_exported_picture_keeps_its_pixels_and_nothing_else():
  given = _by_pillow(chara=('tEXt', V1), secret=('zTXt', V1))
  at = given.index(b'IDAT') - 4
  given = given[:at] + png.chunk(b'eXIf', b'where it was taken') + given[at:]
  made = cards.to_png(FIELDS_V2, given)
  pictures = [Image.open(io.BytesIO(one)) for one in (given, made)]
  assert np.array_equal(*map(np.asarray, pictures))
  assert set(pictures[1].text) == {'chara', 'ccv3'}
  assert b'eXIf' not in made
  assert cards.read(made).fields == FIELDS_V2
  with pytest.raises(cards.CardError, match='not a PNG'):
    cards.to_png(FIELDS_V2, b'GIF89a')


def test_export_refuses_what_it_could_not_read():
  with pytest.raises(card_fields.FieldError, match='needs a name'):
    cards.to_json(card_fields.Fields(name=''))
  with pytest.raises(ValueError, match="spec='v1': must be one of v2, v3"):
    cards.to_json(FIELDS_V1, 'v1')


def test_what_is_no_card_is_told_what_a_card_has():
  with pytest.raises(cards.CardError, match=r'^name: missing.*{"name": "Ada"'):
    cards.read(b'{"a": 1}')
  wrong = b'{"spec": "chara_card_v2", "data": {"a": 1}}'
  with pytest.raises(cards.CardError, match=r'^data\.name: missing'):
    cards.read(wrong)
