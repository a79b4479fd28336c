"""Names, limits and defaults that the library and its command line share; imports nothing, so `--help` stays light."""

from typing import Literal, get_args

Mode = Literal["plain", "exact", "tiered", "cascade", "token-v3", "bild", "fly"]
MODES: tuple[Mode, ...] = get_args(Mode)
LOSSLESS: frozenset[Mode] = frozenset({"plain", "exact", "cascade"})
"""Modes whose output is the full model's own."""

DrafterName = Literal["model", "ngram", "layerskip", "filtered", "chain"]
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
PolicyName = Literal["auto", "fixed"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)

ConfidenceName = Literal["hidden", "lm-head"]
CONFIDENCES: tuple[ConfidenceName, ...] = get_args(ConfidenceName)
"""What a layer's confidence is read from: its outputs themselves, or what the model's head makes of them."""

OnlineSearchName = Literal["conflayers"]
ONLINE_SEARCHES: tuple[OnlineSearchName, ...] = get_args(OnlineSearchName)
SKIP_RATIO = 0.15
"""Of the layers, skipped by an online search: small models have little depth to spare."""

MAX_ROWS = 64
"""Rows of logits one decode can return: the library reserves room for them, 0.6 MB each with 152k tokens."""

MAX_DRAFT = MAX_ROWS - 1
"""A draft and the token before it are verified in one decode."""

DRAFT_MAX = 32
"""Tokens a draft may have unless the user says otherwise; confidence and costs end most drafts long before."""

STOCK, PEER = "stock", "stock-speculative"
OWN_STRATEGIES = (*MODES, "self", "ngram")
STRATEGIES = (STOCK, PEER, *OWN_STRATEGIES)
"""What `bench` compares: plain decoding and speculation by stock llama.cpp, our modes, and exact mode without a draft
model, with and without a mask to draft under."""
