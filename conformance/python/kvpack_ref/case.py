"""One case of a corpus: a request, the key ring it is asked under, and the answer it must get."""

import collections

# `request` has its words separated by one space, `answer` is the exact line, `ring` is a name out of `rings`.
Case = collections.namedtuple("Case", "name ring request answer")
