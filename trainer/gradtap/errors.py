"""What a restore says when it cannot be exact."""


class RestoreError(RuntimeError):
    """name is one of the table in docs/trainer.md, "When a restore refuses"."""

    def __init__(self, name, what, expected=None, actual=None, remedy=None):
        text = "%s: %s" % (name, what)
        if expected is not None or actual is not None:
            text += "; expected %s, found %s" % (expected, actual)
        if remedy:
            text += "; remedy: %s" % remedy
        super().__init__(text)
        self.name, self.what = name, what
