"""Takes the picture of the chat page that stands in README.

    python -m experiments.serve --port=8000 …
    python -m tests.serving.photograph http://127.0.0.1:8000 \
      experiments/results/figures/chat_page.png

A browser greets a few characters, talks with the first one, and asks for
another candidate of its last reply. What the model says is what it is.
"""

import io
import pathlib
import sys

from PIL import Image

from tests.serving import browser as browser_lib

SAID = ('Hello! Who are you?', 'Where do you live?', 'What do you like?')
GREETED = 3  # Characters, of whom the first is talked with.
COLOURS = 256  # The page has few, and the file should stay small.
WAIT = 60_000  # Milliseconds for a reply, with compilation.


def main(address: str, path: str) -> None:
  """Takes the picture, and prints its size."""
  with (
    browser_lib.chromium() as browser,
    browser_lib.visit(browser, address, viewport=browser_lib.DESKTOP) as visit,
  ):
    for place in reversed(range(GREETED)):
      visit.page.get_by_role('link', name='New').click()
      visit.find('.character').nth(place).click()
      visit.press('Start a conversation')
      visit.find('.message').wait_for()
    for said in SAID:
      visit.write(said)
      _wait(visit)
    visit.press('Another reply')
    _wait(visit)
    visit.page.mouse.move(1, 1)
    picture = visit.page.screenshot(animations='disabled')
  image = Image.open(io.BytesIO(picture)).convert('RGB')
  image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
  print(f'{path}: {pathlib.Path(path).stat().st_size:,} bytes')


def _wait(visit) -> None:
  """Waits for a reply to end."""
  visit.find('#composer .stop').wait_for(state='visible')
  visit.find('#composer .send').wait_for(state='visible', timeout=WAIT)


if __name__ == '__main__':
  main(*sys.argv[1:])
