"""Drives an endpoint process: requests in, answers out, many in flight."""

import os
import select
import shlex
import subprocess

BLOCK = 1 << 16


class Died(Exception):
    """The endpoint ended, or fell silent, while answers were owed."""


class Endpoint:
    """One running implementation. `timeout_s` bounds its silence while it owes an answer."""

    def __init__(self, command, timeout_s=120.0):
        self.command = command
        self.timeout_s = timeout_s
        self._rest = b""
        self._process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         bufsize=0)
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)

    def ask(self, requests):
        """The answer to each request line, in order."""
        unsent = memoryview("".join([line + "\n" for line in requests]).encode("ascii"))
        blocks, owed = [self._rest], len(requests)
        while owed > 0:
            writers = [self._in] if unsent else []
            readable, writable, _ = select.select([self._out], writers, [], self.timeout_s)
            if not readable and not writable:
                raise Died("silent for %.0f s with %d answers owed" % (self.timeout_s, owed))
            if writable:
                unsent = unsent[self._send(unsent):]
            if readable:
                block = os.read(self._out, BLOCK)
                if not block:
                    raise Died("ended with %d answers owed, status %s" % (owed, self._process.wait()))
                owed -= block.count(b"\n")
                blocks.append(block)
        if owed < 0:
            raise Died("gave more answers than there were requests")
        text, _, self._rest = b"".join(blocks).rpartition(b"\n")
        return text.decode("ascii", "backslashreplace").split("\n") if requests else []

    def _send(self, unsent):
        try:
            return os.write(self._in, unsent[:BLOCK])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Died("ended with status %s while requests were being sent" % self._process.wait()) from None

    def close(self):
        """End its input; the exit status, or None when it had to be killed."""
        self._process.stdin.close()
        try:
            return self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        finally:
            self._process.stdout.close()

    def kill(self):
        self._process.kill()
        self._process.wait()
