"""Interrupts at whatever moment they come: a call raises or has done all of it, and the store goes on."""
import signal
import unittest

import support
from support import MODEL, StoreCase, make_planes, make_tokens
from store_test import Collecting


@unittest.skipUnless(hasattr(signal, "setitimer"), "left out: no interval timers on this system")
class Interrupts(StoreCase):
    def setUp(self):
        super().setUp()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)

    def test_restores_and_saves_that_are_interrupted(self):
        store = self.create()
        self.save(store, 700)
        wanted = make_planes(700)
        tokens = make_tokens(700)
        interrupted = 0
        for number in range(60):
            sink = Collecting(lent=(number % 2,))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 * (number + 1))
                restored = store.restore(self.family, MODEL, tokens, sink=sink)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
                continue
            self.assertTrue(restored)
            self.assertEqual(sink.live, wanted)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertEqual([bytes(plane) for plane in store.restore(self.family, MODEL, tokens).planes], wanted)
        self.assertEqual(store.stats().objects_quarantined, 0)


if __name__ == "__main__":
    support.main()
