"""Limits and defaults that the library and its command line share; imports nothing, so that `--help` stays light."""

MAX_ROWS = 64
"""Rows of logits one decode can return: the library reserves room for them, 0.6 MB each with 152k tokens."""

MAX_DRAFT = MAX_ROWS - 1
"""A draft and the token before it are verified in one decode."""

DRAFT_MAX = 3
"""Tokens a draft may have unless the user says otherwise."""

ACCEPT, ESCALATE = 0.6, 0.3
"""Thresholds of the ratio gate, see `strategies.gate.RatioGate`."""
