"""Debian's chromium on the chat page, and whatever goes wrong in it."""

from collections.abc import Iterator
import contextlib
import json
import re
import shutil

import pytest

DESKTOP = {'width': 1280, 'height': 800}
PHONE = {'width': 390, 'height': 844}
SECONDS = 60  # That anything expected may take on a busy machine.

_REFUSED = re.compile(r'Failed to load resource: .* status of (\d+)')
# Runs in the page before all else; `ran` is what hostile texts try to set.
_WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
  violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
_DROP = """
([name, type, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([text], name, {type}));
  for (const kind of ['dragover', 'drop']) {
    document.body.dispatchEvent(new DragEvent(kind, {
      dataTransfer: transfer, bubbles: true, cancelable: true,
    }));
  }
}
"""


@contextlib.contextmanager
def chromium() -> Iterator:
  """Starts the browser; skips where it or playwright is missing."""
  api = pytest.importorskip(
    'playwright.sync_api', reason='no playwright: pip install playwright'
  )
  path = shutil.which('chromium')
  if path is None:
    pytest.skip('no chromium: apt-get install chromium')
  api.expect.set_options(timeout=SECONDS * 1000)
  with api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=path, args=['--headless=new', '--no-sandbox']
    )
    with contextlib.closing(browser):
      yield browser


class Visit:
  """A person's browser on the page.

  Attributes:
    page: playwright's.
    troubles: what no visit should see: messages in the console, exceptions,
      dialogs, requests to others.
  """

  def __init__(self, context, address: str, expected: tuple[int, ...]):
    self.context = context
    self.address = address
    self.troubles: list[str] = []
    self._expected = expected
    context.add_init_script(_WATCH)
    context.set_default_timeout(SECONDS * 1000)
    self.page = context.new_page()
    self.page.on('console', self._console)
    self.page.on('pageerror', lambda error: self.troubles.append(str(error)))
    self.page.on('request', self._request)
    self.page.on('dialog', self._dialog)
    self.page.goto(address)

  def _console(self, message) -> None:
    refused = _REFUSED.match(message.text)
    if refused and int(refused[1]) in self._expected:
      return
    if 'net::ERR_' in message.text and 0 in self._expected:
      return
    self.troubles.append(f'{message.type}: {message.text}')

  def _request(self, request) -> None:
    if not request.url.startswith((f'{self.address}/', 'data:')):
      self.troubles.append(f'request to {request.url}')

  def _dialog(self, dialog) -> None:
    self.troubles.append(f'dialog: {dialog.message}')
    dialog.dismiss()

  def find(self, selector: str, **options):
    return self.page.locator(selector, **options)

  def expect(self, target):
    """Returns what is expected of a locator, or of a selector."""
    expect = pytest.importorskip('playwright.sync_api').expect
    return expect(self.find(target) if isinstance(target, str) else target)

  def tells(self, words: str) -> None:
    """Expects words of the notice; '' for no notice."""
    notice = self.expect('#notice')
    notice.to_contain_text(words) if words else notice.to_be_hidden()

  def shows(self, *texts: str) -> None:
    """Expects that the transcript ends with these texts."""
    for place, text in enumerate(texts, -len(texts)):
      self.expect(self.find('.message .text').nth(place)).to_have_text(text)

  def counts(self, count: int, selector: str = '.message') -> None:
    self.expect(selector).to_have_count(count)

  def drafts(self, text: str) -> None:
    """Expects what is in the field for the next message."""
    self.expect('#draft').to_have_value(text)

  @property
  def last(self):
    return self.find('.message').last

  def edit(self, place: int, text: str | None = None) -> None:
    """Begins to edit a message, and writes another text."""
    self.find('.message').nth(place).hover()
    self.find('.message').nth(place).locator('.edit').click()
    if text is not None:
      self.find('.editor textarea').fill(text)

  def start_conversation(self, name: str) -> None:
    """Opens a conversation with a character."""
    self.find('.character', has_text=name).click()
    self.page.get_by_role('button', name='Start a conversation').click()
    self.find('#composer').wait_for()

  def write(self, text: str) -> None:
    """Types a message, and sends it."""
    self.find('#draft').fill(text)
    self.find('#draft').press('Enter')

  def press(self, name: str) -> None:
    """Presses the last button of that name."""
    self.page.get_by_role('button', name=name).last.click()

  def texts(self) -> list[str]:
    """Returns what the transcript shows, without the buttons."""
    return self.find('.message .text').all_inner_texts()

  def drop(self, card: dict | bytes | str, name: str = 'card.json') -> None:
    """Drops a file on the page."""
    text = json.dumps(card) if isinstance(card, dict) else card
    self.page.evaluate(_DROP, [name, 'application/json', text])

  def ran(self) -> list[str]:
    """Returns what a text made the page do, or try to do."""
    found = self.page.evaluate('() => [window.ran, ...window.violations]')
    return [one for one in found if one]

  def overflows(self) -> bool:
    """Returns whether the page is wider than the screen."""
    return self.page.evaluate(
      '() => document.documentElement.scrollWidth > innerWidth'
    )

  def small(self) -> list[str]:
    """Returns controls in view that a finger may miss: under 44 pixels."""
    return self.page.evaluate(
      """() => [...document.querySelectorAll('a, button, input, textarea')]
        .filter((one) => one.checkVisibility() && !one.matches('.unseen'))
        .map((one) => [one, one.getBoundingClientRect()])
        .filter(([, {width, height}]) => Math.min(width, height) < 43.9)
        .map(([one, {width, height}]) =>
          `${one.outerHTML.slice(0, 80)}: ${width} × ${height}`)"""
    )

  def unnamed(self) -> list[str]:
    """Returns controls in view that a screen reader has no name for."""
    lines = self.find('body').aria_snapshot().splitlines()
    kinds = ('- button', '- link', '- textbox')
    return [line for line in map(str.strip, lines) if line in kinds]


@contextlib.contextmanager
def visit(
  browser,
  address: str,
  expected: tuple[int, ...] = (),
  viewport: dict | None = None,
  **options,
) -> Iterator[Visit]:
  """Visits the page; fails at its end if anything went wrong.

  Args:
    browser: of `chromium`.
    address: of the server.
    expected: status codes that the test provokes; 0 for no connection.
    viewport: of the screen.
    **options: of the browser's context.
  """
  viewport = viewport or DESKTOP
  with contextlib.closing(
    browser.new_context(viewport=viewport, **options)
  ) as context:
    found = Visit(context, address, expected)
    yield found
    troubles = found.ran() + found.troubles
    assert not troubles, troubles
