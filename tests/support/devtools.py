"""A conversation with Chromium over its debugging pipe: commands in, answers out. For what no flag can ask of it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path
from types import TracebackType


class Browser:
    """A headless Chromium with one page. Ends with its context."""

    def __init__(self, chromium: str, flags: list[str], page: Path) -> None:
        (to_browser, self._write), (self._read, from_browser) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]

        def connect() -> None:
            """Chromium reads commands from descriptor 3 and answers on 4."""
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [chromium, *flags, "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, **quiet)
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._answers, self._count, self._session = os.fdopen(self._read, "rb"), 0, None
        try:
            self._open(page)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _open(self, page: Path) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")
        self.ask("Page.navigate", url=page.as_uri())
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def ask(self, method: str, **params) -> dict:
        """The answer to a command; what happens meanwhile is passed over."""
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._count, "method": method, "params": params, **session}
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while (answer := self._message()).get("id") != self._count:
            pass
        return answer["result"]

    def value(self, script: str) -> object:
        """What an expression is in the page."""
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def until(self, script: str) -> None:
        """Returns when an expression is true in the page, which looks at each frame that it draws."""
        look = f"const look = () => ({script}) ? done() : requestAnimationFrame(look); look();"
        self.ask("Runtime.evaluate", expression=f"new Promise((done) => {{ {look} }})", awaitPromise=True)

    def _message(self) -> dict:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise EOFError("chromium ended before it answered")
            text += byte
        return json.loads(text)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._write)  # which ends it
        self._process.wait(30)
        self._answers.close()
