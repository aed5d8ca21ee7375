"""Renders a report as one HTML file, which loads nothing.

Figures are inline SVG. Colours follow the reader's system, light or dark.
Markdown is rendered without HTML, links and images, so that a name from outside
can neither run a script nor fetch a file; the policy of the page's head forbids
both as well.
"""

from collections.abc import Sequence
import html

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 90rem;
  margin: 2rem auto; padding: 0 1rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
th, td {{ white-space: nowrap; }}
table {{ font-size: .8em; border-collapse: collapse;
  margin: 1em 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2em .8em .2em 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #8886; }}
figure {{ margin: 1.5rem 0; }}
svg {{ max-width: 100%; height: auto; }}
@media (prefers-color-scheme: dark) {{
  svg {{ filter: invert(.9) hue-rotate(180deg); }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""
_RULES = 'image', 'link', 'autolink', 'reference', 'html_block', 'html_inline'


def render(title: str, parts: Sequence[str | tuple[str, str]]) -> str:
  """Returns the page.

  Args:
    title: of the window.
    parts: Markdown, or figures, each an SVG element and its description.
  """
  import markdown_it

  markdown = markdown_it.MarkdownIt('commonmark', {'html': False})
  markdown.enable('table').disable(_RULES)
  body = []
  for part in parts:
    if isinstance(part, str):
      body.append(f'<div class="wide">{markdown.render(part)}</div>')
    else:
      svg, text = part
      body.append(
        f'<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>'
      )
  return _PAGE.format(title=html.escape(title), body='\n'.join(body))
