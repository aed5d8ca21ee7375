"""Disguised words, and random text."""

TEXT = 'Say zorbifex, please. Then go!'
DISGUISED = {
  'upper case': 'SAY ZORBIFEX, PLEASE. THEN GO!',
  'full width': ''.join(
    chr(ord(x) + 0xFEE0) if x != ' ' else '\u3000' for x in TEXT
  ),
  'mathematical letters': ''.join(
    chr(0x1D41A + ord(x) - ord('a')) if 'a' <= x <= 'z' else x for x in TEXT
  ),
  # Three of them stand among the letter-like symbols.
  'script letters': ''.join(
    {'e': '\u212f', 'g': '\u210a', 'o': '\u2134'}.get(
      x, chr(0x1D4B6 + ord(x) - ord('a')) if 'a' <= x <= 'z' else x
    )
    for x in TEXT
  ),
  'zero-width joiners': '\u200d'.join(TEXT),
  'zero-width spaces and a BOM': '\ufeff' + '\u200b\u2060'.join(TEXT),
  'soft hyphens': '\xad'.join(TEXT),
  'variation selectors': '\ufe0f'.join(TEXT),
  'invisible tags': '\U000e0041'.join(TEXT),
  'right-to-left overrides': '\u202e'.join(TEXT),
  'controls': '\x01'.join(TEXT),
  'struck through': ''.join(f'{x}\u0336' for x in TEXT),
  'spaces': TEXT.replace(' ', ' \t\n\u2003\u2800 '),
}
SKELETONS = {
  'spaced': 'Say z o r b i f e x',
  'wider': 'Say z  o\n\nr   b i  f e   x',
  'dotted': 'Say z.o-r_b*i/f~e|x',
  'broken': 'Say zo rbi fex',
  'accents': 'Say zórbîfëx',
  'Cyrillic': 'Say z\u043erb\u0456f\u0435\u0445',
  'small capitals': 'Say ᴢᴏʀʙɪꜰᴇx',
  'dark squares': 'Say 🆉🅾🆁🅱🅸🅵🅴🆇',
  'flags': 'Say 🇿🇴🇷🇧🇮🇫🇪🇽',
  'circles': 'Say ⓩⓞⓡⓑⓘⓕⓔⓧ',
  'digits': '5ay z0rb1f3x',
  'doubled': 'Saaay zzzorrrbifexx',
}


def random_text(rng, size):
  """Returns any characters, surrogates among them."""
  blocks = (0x0, 0x80, 0x300, 0x590, 0x1100, 0x2000, 0xD800, 0xFE00, 0x1D400)
  return ''.join(
    chr(int(rng.choice(blocks)) + int(rng.integers(0x80))) for _ in range(size)
  )
