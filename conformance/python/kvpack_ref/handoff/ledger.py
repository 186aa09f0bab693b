"""The replay ledger as a file content and a sequence of calls: a model without a disk."""
from .canonical import Pairs, Struct, canonical, parse, u64
from .errors import Refusal, bare


def _watermarks(v):
    if not isinstance(v, Pairs):
        raise Refusal("json", "expected an object")
    return {key: u64(value) for key, value in v}


_LedgerFile = Struct({"highest_generation": _watermarks}, closed=True)


def render(state):
    """The file of a ledger: two-space indent, keys in byte order, one LF at the end."""
    if not state:
        return b'{\n  "highest_generation": {}\n}\n'
    rows = b",\n".join(b"    " + canonical(key) + b": %d" % state[key]
                       for key in sorted(state, key=lambda k: k.encode("utf-8")))
    return b'{\n  "highest_generation": {\n' + rows + b"\n  }\n}\n"


def load(content):
    """The watermarks in a file: `key_id:epoch` to the highest generation."""
    try:
        return _LedgerFile(parse(content))["highest_generation"]
    except Refusal as r:
        raise Refusal("config", f"replay ledger: {r.message}") from None


class Ledger:
    """`file` is what is on disk. With `persist_fails` every write fails, which latches the ledger."""

    def __init__(self, content=None):
        self._state = {} if content is None else load(content)
        self._latch = None
        self.persist_fails = False
        self.file = render(self._state) if content is None else content

    def admit(self, key_id, epoch, generation):
        """Refuses a generation that cannot be installed."""
        if self._latch is not None:
            raise Refusal("config", f"replay ledger is latched degraded until restart: {self._latch}")
        if generation == 0:
            raise bare("zero_generation")
        if generation <= self._state.get(f"{key_id}:{epoch}", 0):
            raise bare("replay")

    def reserve(self, key_id, epoch, generation):
        """Raises the watermark durably, before the transfer is committed."""
        self.admit(key_id, epoch, generation)
        state = {**self._state, f"{key_id}:{epoch}": generation}
        if self.persist_fails:
            self._latch = "I/O: the ledger cannot be written"
            raise Refusal("io", "the ledger cannot be written")
        self.file = render(state)
        self._state = state
