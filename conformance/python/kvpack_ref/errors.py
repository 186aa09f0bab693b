"""The one error type: a category token and the exact text of the format documents."""


class Reject(Exception):
    """A refusal. str() is the verdict `category:message` of the line protocol."""

    def __init__(self, category, message):
        Exception.__init__(self, category, message)
        self.category = category
        self.message = message

    def __str__(self):
        return self.category + ":" + self.message


def need(condition, category, message):
    """Refuse unless the condition holds."""
    if not condition:
        raise Reject(category, message)


def verdict(call):
    """`ok`, or `category:message` of the refusal that calling ends in."""
    try:
        call()
    except Reject as refusal:
        return str(refusal)
    return "ok"
