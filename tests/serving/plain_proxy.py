"""A proxy as nginx is with `proxy_pass` and nothing else: it adds no header."""

from collections.abc import Iterator
import contextlib
import http.server
import threading
import urllib.error
import urllib.request


@contextlib.contextmanager
def serving(address: str) -> Iterator[str]:
  """Yields the address of a proxy before a server.

  Args:
    address: the server's, as http://127.0.0.1:8000.
  """

  class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
      pass

    def do_GET(self):
      size = int(self.headers.get('Content-Length', 0))
      body = self.rfile.read(size) if size else None
      # The proxied server's name stands for the client's, as in nginx.
      kept = {
        name: value
        for name, value in self.headers.items()
        if name.lower() not in ('host', 'connection', 'content-length')
      }
      forwarded = urllib.request.Request(
        address + self.path, body, kept, method=self.command
      )
      try:
        answer = urllib.request.urlopen(forwarded, timeout=20)
      except urllib.error.HTTPError as error:
        answer = error
      with answer:
        found = answer.read()
      self.send_response(answer.status)
      for name in 'Content-Type', 'Set-Cookie':
        if name in answer.headers:
          self.send_header(name, answer.headers[name])
      self.send_header('Content-Length', str(len(found)))
      self.end_headers()
      self.wfile.write(found)

    do_POST = do_PUT = do_DELETE = do_GET

  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as proxy:
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield f'http://127.0.0.1:{proxy.server_port}'
    finally:
      proxy.shutdown()
      thread.join()
